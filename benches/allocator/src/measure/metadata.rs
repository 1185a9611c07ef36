//! Metadata: host memory in use for a live block, when most blocks are live.
//!
//! Counted by the system's malloc, which Rust and C++ share, fixed tables included.

use super::replay::Replay;
use crate::peers::Peer;
use crate::workloads::Trace;

/// Bytes for a live block at the first moment when most are live; `None` where malloc does not say.
pub(crate) fn bytes_per_block<P: Peer>(trace: &Trace) -> Option<f64> {
    let (peak_op, peak_blocks) = most_live(trace);
    // `Replay` itself has one more allocation: the table of live blocks. It is made outside.
    let before = heap_bytes()?;
    let table_bytes = trace.places * size_of::<Option<P::Handle>>();
    let mut replay = Replay::<P>::new(trace, trace.ample_units());
    for &op in &trace.ops[..=peak_op] {
        replay.step(op);
    }
    let used = heap_bytes()?.saturating_sub(before + table_bytes as u64);
    drop(replay);
    Some(used as f64 / peak_blocks as f64)
}

/// The step after which most blocks are live, and how many.
fn most_live(trace: &Trace) -> (usize, u64) {
    let mut live = 0;
    let mut most = (0, 0);
    for (step, op) in trace.ops.iter().enumerate() {
        if op.size_units == 0 {
            live -= 1;
        } else {
            live += 1;
            if live > most.1 {
                most = (step, live);
            }
        }
    }
    most
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn heap_bytes() -> Option<u64> {
    // SAFETY: only reads malloc's own counters.
    let info = unsafe { libc::mallinfo2() };
    Some((info.uordblks + info.hblkhd) as u64)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn heap_bytes() -> Option<u64> {
    None
}
