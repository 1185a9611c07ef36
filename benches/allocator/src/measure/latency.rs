//! The distribution of the time of one allocation.

use super::clock::{Clock, ticks};
use super::replay::Replay;
use crate::peers::Peer;
use crate::workloads::Trace;

/// Percentiles in nanoseconds, without the cost of the clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Latency {
    pub(crate) p50_ns: f64,
    pub(crate) p99_ns: f64,
}

impl Latency {
    /// 99th percentile over median.
    pub(crate) fn ratio(self) -> f64 {
        self.p99_ns / self.p50_ns
    }
}

/// Measures every allocation of the third pass.
pub(crate) fn of_allocate<P: Peer>(trace: &Trace, clock: &Clock) -> Latency {
    let mut replay = Replay::<P>::new(trace, trace.ample_units());
    for _ in 0..2 {
        replay.play(trace);
    }
    let mut times = Vec::with_capacity(trace.pairs());
    for &op in &trace.ops {
        let before = ticks();
        replay.step(op);
        let after = ticks();
        if op.size_units > 0 {
            times.push(clock.nanoseconds(before, after));
        }
    }
    times.sort_by(f64::total_cmp);
    let percentile = |percent: usize| times[(times.len() - 1) * percent / 100];
    Latency { p50_ns: percentile(50), p99_ns: percentile(99) }
}
