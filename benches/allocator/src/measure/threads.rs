//! Several threads on one allocator, each pinned to a processor: what one allocates, the next one frees.
//!
//! Blocks travel in batches, as they do from a forward to a backward pass. One thread alone sends to itself.

use std::sync::Barrier;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::Instant;

use flex::{AllocationDirective, BlockHandle, FlexAllocator};

use super::median;
use super::time::RUNS;
use crate::peers::flex_locked::FlexLocked;
use crate::peers::{Peer, UNIT_BYTES};
use crate::workloads::Workload;

const BATCHES: usize = 1500;
const BATCH: usize = 64;
/// Batches on their way between two threads.
const QUEUE: usize = 16;
const CAPACITY_UNITS: u64 = 1 << 30;

/// Pairs a microsecond, all threads together: the median of the runs.
pub(crate) fn pairs_per_microsecond(threads: usize) -> f64 {
    let peer = FlexLocked::new(CAPACITY_UNITS);
    let sizes = sizes();
    run(peer.allocator(), &sizes, threads);
    median((0..RUNS).map(|_| run(peer.allocator(), &sizes, threads)))
}

/// Sizes up to a mebibyte, from the Pareto workload.
fn sizes() -> Vec<u64> {
    let trace = Workload::Pareto.short(1);
    let bytes = trace.ops.iter().map(|op| u64::from(op.size_units) * UNIT_BYTES);
    bytes.filter(|&bytes| (1..=1 << 20).contains(&bytes)).take(4096).collect()
}

fn run(allocator: &FlexAllocator, sizes: &[u64], threads: usize) -> f64 {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let (senders, mut receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| sync_channel(QUEUE)).unzip();
    receivers.rotate_right(1); // Thread k sends to the channel that thread k + 1 receives from.
    let start = Barrier::new(threads + 1);
    let started = std::thread::scope(|scope| {
        for (thread, (sender, receiver)) in senders.into_iter().zip(receivers).enumerate() {
            let core = (!cores.is_empty()).then(|| cores[thread % cores.len()]);
            let start = &start;
            scope.spawn(move || {
                core.map(core_affinity::set_for_current);
                start.wait();
                exchange(allocator, sizes, &sender, &receiver);
                drop(sender);
                receiver.iter().for_each(|batch| free_all(allocator, batch));
            });
        }
        start.wait();
        Instant::now()
    });
    let elapsed = started.elapsed();
    (threads * BATCHES * BATCH) as f64 / elapsed.as_nanos() as f64 * 1000.0
}

type Batch = Vec<BlockHandle>;

fn exchange(
    allocator: &FlexAllocator,
    sizes: &[u64],
    sender: &SyncSender<Batch>,
    receiver: &Receiver<Batch>,
) {
    let directive = AllocationDirective::default();
    for number in 0..BATCHES {
        let chosen = (0..BATCH).map(|k| sizes[(number * BATCH + k) % sizes.len()]);
        let allocated = chosen.map(|bytes| allocator.allocate_block(bytes, &directive).expect("room").0);
        let mut batch = allocated.collect();
        while let Err(TrySendError::Full(returned)) = sender.try_send(batch) {
            batch = returned;
            free_received(allocator, receiver);
        }
        free_received(allocator, receiver);
    }
}

/// Frees one batch, or lets another thread work.
fn free_received(allocator: &FlexAllocator, receiver: &Receiver<Batch>) {
    match receiver.try_recv() {
        Ok(batch) => free_all(allocator, batch),
        Err(TryRecvError::Empty) => std::thread::yield_now(),
        Err(TryRecvError::Disconnected) => {}
    }
}

fn free_all(allocator: &FlexAllocator, batch: Batch) {
    for handle in batch {
        allocator.free_block(handle).expect("a live block");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_free_each_others_blocks_and_leave_nothing() {
        let peer = FlexLocked::new(CAPACITY_UNITS);
        for threads in [1, 3] {
            assert!(run(peer.allocator(), &sizes(), threads) > 0.0);
            let statistics = peer.allocator().statistics().unwrap();
            assert_eq!(statistics.allocated_bytes.current, 0);
        }
        assert_eq!(peer.allocator().statistics().unwrap().allocation.allocated, (4 * BATCHES * BATCH) as u64);
    }
}
