//! Packing: the peak of live bytes over the smallest capacity that serves the trace; 1 is perfect.
//!
//! Whether a capacity serves is not monotone: an allocator may fail with a little more memory than it succeeded with.
//! So the capacity is lowered in steps of 0.2 %, from half as much again as the peak (more if that does not serve), and
//! the last one before the first failure counts: every capacity tried above it serves as well. A single seed means
//! nothing; the mean over many does.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::replay::Replay;
use crate::peers::Peer;
use crate::workloads::Trace;

/// Where the descent starts, as a multiple of the peak.
const START: f64 = 1.5;
/// By how much the start is raised until it serves.
const RAISE: f64 = 1.25;
/// An allocator that needs more than this is given up.
const HIGHEST: f64 = 16.0;
/// One step down.
const STEP: f64 = 0.998;

/// Who takes part.
pub(crate) struct Packed {
    pub(crate) name: &'static str,
    serves: fn(&Trace, u64) -> bool,
}

impl Packed {
    pub(crate) const fn of<P: Peer>() -> Packed {
        Packed {
            name: P::NAME,
            serves: |trace, capacity_units| Replay::<P>::new(trace, capacity_units).serves(trace),
        }
    }

    /// The packing of one trace; 0 if no reasonable capacity serves it.
    pub(crate) fn measure(&self, trace: &Trace) -> f64 {
        smallest_capacity(trace.peak_units, |capacity_units| (self.serves)(trace, capacity_units))
            .map_or(0.0, |capacity_units| trace.peak_units as f64 / capacity_units as f64)
    }
}

/// The last capacity that serves on the way down.
fn smallest_capacity(peak_units: u64, serves: impl Fn(u64) -> bool) -> Option<u64> {
    let peak = peak_units as f64;
    let mut capacity = peak * START;
    while !serves(capacity as u64) {
        capacity *= RAISE;
        if capacity > peak * HIGHEST {
            return None;
        }
    }
    // Below the peak nothing can serve.
    while capacity * STEP >= peak && serves((capacity * STEP) as u64) {
        capacity *= STEP;
    }
    Some(capacity as u64)
}

/// The packing of every contender on every trace, as `result[contender][trace]`. Uses all processors: nothing is timed.
pub(crate) fn measure_all(contenders: &[Packed], traces: &[Trace]) -> Vec<Vec<f64>> {
    let results = Mutex::new(vec![vec![0.0; traces.len()]; contenders.len()]);
    let next = AtomicUsize::new(0);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    let (contender, trace) = (job % contenders.len(), job / contenders.len());
                    let Some(played) = traces.get(trace) else { break };
                    let packing = contenders[contender].measure(played);
                    results.lock().expect("no worker panics")[contender][trace] = packing;
                }
            });
        }
    });
    results.into_inner().expect("no worker panics")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_that_serves_below_one_that_fails_does_not_count() {
        let capacity = smallest_capacity(1000, |units| units >= 1200 || (1050..1100).contains(&units));
        assert!((1200..1203).contains(&capacity.unwrap()));
    }

    #[test]
    fn the_start_rises_until_it_serves_or_is_given_up() {
        let capacity = smallest_capacity(1000, |units| units >= 4000);
        assert!((4000..4009).contains(&capacity.unwrap()));
        assert_eq!(smallest_capacity(1000, |units| units >= 100_000), None);
        assert!((1000..1003).contains(&smallest_capacity(1000, |_| true).unwrap()));
    }
}
