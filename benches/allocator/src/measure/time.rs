//! Time of a pair of allocate and free.
//!
//! Every contender keeps one allocator, warmed by a first pass. In a run each of them in turn plays the trace a few
//! times, of which the fastest counts: what interrupted the others is not the allocator's. A ratio is taken within a
//! run; the median over the runs is the figure.

use std::time::Instant;

use super::median;
use super::replay::Replay;
use crate::peers::Peer;
use crate::workloads::Trace;

/// Runs of which the median is taken.
pub(crate) const RUNS: usize = 5;
/// Passes of which the fastest is taken.
const PASSES: usize = 3;

/// An allocator that has played the trace before.
pub(crate) trait Warm {
    /// The trace, again; returns how many allocations were refused.
    fn play(&mut self, trace: &Trace) -> usize;
}

impl<P: Peer> Warm for Replay<P> {
    fn play(&mut self, trace: &Trace) -> usize {
        Replay::play(self, trace)
    }
}

/// Who takes part: a name and how to begin.
pub(crate) struct Timed {
    pub(crate) name: &'static str,
    warm: fn(&Trace) -> Box<dyn Warm>,
}

impl Timed {
    pub(crate) const fn of<P: Peer + 'static>() -> Timed {
        Timed {
            name: P::NAME,
            warm: |trace| {
                let mut replay = Replay::<P>::new(trace, trace.ample_units());
                replay.play(trace);
                Box::new(replay)
            },
        }
    }
}

/// Nanoseconds of a pair, by contender and run.
pub(crate) struct PairTimes {
    pub(crate) rows: Vec<PairTime>,
}

/// One contender's.
pub(crate) struct PairTime {
    pub(crate) name: &'static str,
    pub(crate) runs_ns: Vec<f64>,
    /// Allocations refused in a pass: the time of a contender that refuses is not comparable.
    pub(crate) refused: usize,
}

impl PairTimes {
    /// All contenders on one trace, in turns.
    pub(crate) fn measure(contenders: &[Timed], trace: &Trace) -> PairTimes {
        let mut warm: Vec<_> = contenders.iter().map(|contender| (contender.warm)(trace)).collect();
        let row = |contender: &Timed| PairTime { name: contender.name, runs_ns: Vec::new(), refused: 0 };
        let mut rows: Vec<_> = contenders.iter().map(row).collect();
        for _ in 0..RUNS {
            for (row, replay) in rows.iter_mut().zip(&mut warm) {
                let passes = (0..PASSES).map(|_| {
                    let started = Instant::now();
                    row.refused = replay.play(trace);
                    started.elapsed().as_nanos() as f64 / trace.pairs() as f64
                });
                let fastest = passes.fold(f64::INFINITY, f64::min);
                row.runs_ns.push(fastest);
            }
        }
        PairTimes { rows }
    }

    fn row(&self, name: &str) -> &PairTime {
        self.rows.iter().find(|row| row.name == name).expect("a contender that took part")
    }

    /// The median time of one contender.
    pub(crate) fn median_ns(&self, name: &str) -> f64 {
        median(self.row(name).runs_ns.iter().copied())
    }

    /// Times of the runs of one contender.
    pub(crate) fn runs_ns(&self, name: &str) -> &[f64] {
        &self.row(name).runs_ns
    }

    /// The median over the runs of one contender's time over another's.
    pub(crate) fn ratio(&self, ours: &str, peer: &str) -> f64 {
        let pairs = self.row(ours).runs_ns.iter().zip(&self.row(peer).runs_ns);
        median(pairs.map(|(ours, peer)| ours / peer))
    }
}
