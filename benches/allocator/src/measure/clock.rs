//! A clock for single calls of some ten nanoseconds: the processor's cycle counter where there is one.

use std::time::{Duration, Instant};

use super::median;

/// How ticks become nanoseconds.
pub(crate) struct Clock {
    ticks_per_nanosecond: f64,
    /// What two readings with nothing between them differ by.
    overhead_ticks: f64,
}

impl Clock {
    /// Compares the counter with the system's clock.
    pub(crate) fn calibrate() -> Clock {
        const CALIBRATION: Duration = Duration::from_millis(50);
        let (started, first) = (Instant::now(), ticks());
        while started.elapsed() < CALIBRATION {}
        let passed = (ticks() - first) as f64;
        let ticks_per_nanosecond = passed / started.elapsed().as_nanos() as f64;
        let overhead_ticks = median((0..10_001).map(|_| {
            let before = ticks();
            (ticks() - before) as f64
        }));
        Clock { ticks_per_nanosecond, overhead_ticks }
    }

    /// The time between two readings, without the cost of reading.
    pub(crate) fn nanoseconds(&self, before: u64, after: u64) -> f64 {
        ((after - before) as f64 - self.overhead_ticks).max(0.0) / self.ticks_per_nanosecond
    }
}

/// The counter, read after everything before it is done.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    use std::arch::x86_64::{__rdtscp, _mm_lfence};
    let mut processor = 0;
    // SAFETY: every x86-64 processor of the last fifteen years has the instruction; it writes to `processor` alone.
    unsafe {
        let ticks = __rdtscp(&raw mut processor);
        _mm_lfence();
        ticks
    }
}

/// The system's clock, in nanoseconds.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn ticks() -> u64 {
    use std::sync::LazyLock;
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}
