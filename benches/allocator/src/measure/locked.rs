//! The uncontended lock: `FlexAllocator` against its arena and two lock trips, the least that a pair can cost with one
//! mutex.

use std::hint::black_box;
use std::sync::Mutex;
use std::time::Instant;

use super::median;
use super::time::{PairTimes, RUNS};
use crate::peers::Peer;
use crate::peers::flex_arena::FlexArena;
use crate::peers::flex_locked::FlexLocked;

const TRIPS: u32 = 200_000;

/// Nanoseconds of locking and unlocking a free `std::sync::Mutex`: the fastest of a few rounds, by run.
pub(crate) fn trips_ns() -> Vec<f64> {
    let mutex = Mutex::new(0_u64);
    let round = || {
        let started = Instant::now();
        for _ in 0..TRIPS {
            *black_box(&mutex).lock().expect("no panic under the lock") += 1;
        }
        started.elapsed().as_nanos() as f64 / f64::from(TRIPS)
    };
    (0..RUNS).map(|_| (0..3).map(|_| round()).fold(f64::INFINITY, f64::min)).collect()
}

/// The median over the runs of the locked pair over its floor.
pub(crate) fn over_floor(times: &PairTimes, trips_ns: &[f64]) -> f64 {
    let runs = times.runs_ns(FlexLocked::NAME).iter().zip(times.runs_ns(FlexArena::NAME)).zip(trips_ns);
    median(runs.map(|((locked, arena), trip)| locked / (arena + 2.0 * trip)))
}
