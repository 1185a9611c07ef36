//! The distribution of the time of one allocation.

use serde::Serialize;

use super::clock::{Clock, ticks};
use super::replay::Replay;
use crate::peers::Peer;
use crate::workloads::Trace;

/// Percentiles in nanoseconds, without the cost of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Latency {
    #[serde(rename = "p50")]
    pub(crate) p50_ns: f64,
    #[serde(rename = "p90")]
    pub(crate) p90_ns: f64,
    #[serde(rename = "p99")]
    pub(crate) p99_ns: f64,
    #[serde(rename = "p99.9")]
    pub(crate) p99_9_ns: f64,
}

impl Latency {
    /// Of one time or more, in any order.
    fn of(mut times_ns: Vec<f64>) -> Latency {
        times_ns.sort_by(f64::total_cmp);
        let at = |permille: usize| times_ns[(times_ns.len() - 1) * permille / 1000];
        Latency { p50_ns: at(500), p90_ns: at(900), p99_ns: at(990), p99_9_ns: at(999) }
    }

    /// 99th percentile over median.
    pub(crate) fn ratio(self) -> f64 {
        self.p99_ns / self.p50_ns
    }
}

/// Who takes part.
pub(crate) struct Probed {
    pub(crate) name: &'static str,
    /// Measures every allocation of the third pass.
    pub(crate) measure: fn(&Trace, &Clock) -> Latency,
}

impl Probed {
    pub(crate) const fn of<P: Peer>() -> Probed {
        Probed { name: P::NAME, measure: of_allocate::<P> }
    }
}

fn of_allocate<P: Peer>(trace: &Trace, clock: &Clock) -> Latency {
    let mut replay = Replay::<P>::new(trace, trace.ample_units());
    for _ in 0..2 {
        replay.play(trace);
    }
    let mut times_ns = Vec::with_capacity(trace.pairs());
    for &op in &trace.ops {
        let before = ticks();
        replay.step(op);
        let after = ticks();
        if op.size_units > 0 {
            times_ns.push(clock.nanoseconds(before, after));
        }
    }
    Latency::of(times_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_times_that_so_many_are_below() {
        let times: Vec<f64> = (0..=1000).rev().map(f64::from).collect();
        let latency = Latency::of(times);
        assert_eq!(latency, Latency { p50_ns: 500.0, p90_ns: 900.0, p99_ns: 990.0, p99_9_ns: 999.0 });
        assert!((latency.ratio() - 1.98).abs() < 1e-9);
        let single = Latency::of(vec![7.0]);
        assert_eq!((single.p50_ns, single.p99_9_ns), (7.0, 7.0));
    }
}
