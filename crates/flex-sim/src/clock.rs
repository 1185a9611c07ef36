//! The simulated device's clock, and how device ticks become host time.
//!
//! Traces of a device carry its ticks. To show them beside the host's events, a calibrator has the device note its
//! ticks a few times and notes the host's time before and after each: a [`Sample`]. [`ClockMapping::fit`] makes of
//! two good samples a line, with a bound on its error. Where the ticks are noted is the calibrator's business; real
//! devices write them to device memory.
//!
//! Pure values and integer arithmetic; no lock.
//!
//! # Invariants
//!
//! - A mapping never runs backwards: later ticks map to the same or a later host time.
//! - For a clock that runs evenly the true host time is within [`ClockMapping::error_bound_ns`].

use std::fmt;

/// A device clock that runs evenly, at a rate and from a start of its own.
///
/// ```
/// let clock = flex_sim::clock::SimulatedClock::new(1_000_000_000, 500);
/// assert_eq!(clock.ticks_at(20), 520);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedClock {
    ticks_per_second: u64,
    start_ticks: u64,
}

impl SimulatedClock {
    /// A clock that shows `start_ticks` when the host's clock shows 0.
    pub fn new(ticks_per_second: u64, start_ticks: u64) -> Self {
        SimulatedClock { ticks_per_second, start_ticks }
    }

    /// What the clock shows at a time of the host's, in nanoseconds.
    pub fn ticks_at(&self, host_ns: u64) -> u64 {
        let elapsed = u128::from(host_ns) * u128::from(self.ticks_per_second) / NANOSECONDS_PER_SECOND;
        self.start_ticks.saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }
}

const NANOSECONDS_PER_SECOND: u128 = 1_000_000_000;

/// Device ticks, noted by the device at some time between two readings of the host's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// The host's clock before, in nanoseconds.
    pub before_ns: u64,
    /// What the device noted.
    pub ticks: u64,
    /// The host's clock after, in nanoseconds.
    pub after_ns: u64,
}

impl Sample {
    fn width_ns(&self) -> u64 {
        self.after_ns - self.before_ns
    }

    fn middle_ns(&self) -> u64 {
        self.before_ns + self.width_ns() / 2
    }

    /// How far from the middle the ticks may have been noted, rounded up.
    fn half_width_ns(&self) -> u64 {
        self.width_ns().div_ceil(2)
    }
}

/// Why samples make no mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalibrationError {
    /// Fewer than two samples.
    TooFewSamples {
        /// How many there are.
        count: usize,
    },
    /// A sample that ends before it begins.
    Backwards {
        /// Which one, from 0.
        index: usize,
    },
    /// The device's or the host's clock stood still between the samples.
    StoodStill,
}

impl fmt::Display for CalibrationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CalibrationError::TooFewSamples { count } => write!(f, "{count} sample(s); expected at least 2"),
            CalibrationError::Backwards { index } => write!(f, "sample {index} ends before it begins"),
            CalibrationError::StoodStill => f.write_str("a clock stood still between the samples"),
        }
    }
}

impl std::error::Error for CalibrationError {}

/// A line from device ticks to host time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockMapping {
    first: Anchor,
    last: Anchor,
}

/// A point of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Anchor {
    ticks: u64,
    host_ns: u64,
    error_ns: u64,
}

impl From<&Sample> for Anchor {
    fn from(sample: &Sample) -> Self {
        Anchor { ticks: sample.ticks, host_ns: sample.middle_ns(), error_ns: sample.half_width_ns() }
    }
}

impl ClockMapping {
    /// The line through the tightest sample of the first half and the tightest of the second.
    ///
    /// # Errors
    /// [`CalibrationError`] says what is wrong with the samples.
    pub fn fit(samples: &[Sample]) -> Result<ClockMapping, CalibrationError> {
        if let Some(index) = samples.iter().position(|sample| sample.after_ns < sample.before_ns) {
            return Err(CalibrationError::Backwards { index });
        }
        let (early, late) = samples.split_at(samples.len() / 2);
        let tightest = |half: &[Sample]| half.iter().min_by_key(|sample| sample.width_ns()).map(Anchor::from);
        let (Some(first), Some(last)) = (tightest(early), tightest(late)) else {
            return Err(CalibrationError::TooFewSamples { count: samples.len() });
        };
        if last.ticks <= first.ticks || last.host_ns <= first.host_ns {
            return Err(CalibrationError::StoodStill);
        }
        Ok(ClockMapping { first, last })
    }

    /// The host's time for device ticks, in nanoseconds; 0 for ticks from before the host's clock began.
    pub fn host_ns(&self, ticks: u64) -> u64 {
        let elapsed_ticks = i128::from(ticks) - i128::from(self.first.ticks);
        // Saturates only where the result would be centuries away, and stays in order even there.
        let elapsed_ns = elapsed_ticks.saturating_mul(self.span_ns()).div_euclid(self.span_ticks());
        u64::try_from(i128::from(self.first.host_ns) + elapsed_ns).unwrap_or(match elapsed_ns {
            ..0 => 0,
            _ => u64::MAX,
        })
    }

    /// How far [`host_ns`](Self::host_ns) may be off, in nanoseconds: least between the samples it was made of, and
    /// growing with the distance from them.
    pub fn error_bound_ns(&self, ticks: u64) -> u64 {
        // The true line passes both anchors within their errors, so the error here is at most a weighted sum of them.
        let from_first = (i128::from(ticks) - i128::from(self.first.ticks)).unsigned_abs();
        let from_last = (i128::from(ticks) - i128::from(self.last.ticks)).unsigned_abs();
        let weighted = from_last
            .saturating_mul(u128::from(self.first.error_ns) + self.rounding_ns())
            .saturating_add(from_first.saturating_mul(u128::from(self.last.error_ns) + self.rounding_ns()));
        let bound = weighted.div_ceil(self.span_ticks().unsigned_abs()).saturating_add(self.rounding_ns());
        u64::try_from(bound).unwrap_or(u64::MAX)
    }

    /// What a reading loses because both clocks show whole numbers: at most a tick and a nanosecond.
    fn rounding_ns(&self) -> u128 {
        self.span_ns().unsigned_abs().div_ceil(self.span_ticks().unsigned_abs()) + 1
    }

    fn span_ticks(&self) -> i128 {
        i128::from(self.last.ticks) - i128::from(self.first.ticks)
    }

    fn span_ns(&self) -> i128 {
        i128::from(self.last.host_ns) - i128::from(self.first.host_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample whose ticks are noted a given part of its width after its start.
    fn sample(clock: &SimulatedClock, before_ns: u64, width_ns: u64, noted_after_ns: u64) -> Sample {
        Sample {
            before_ns,
            ticks: clock.ticks_at(before_ns + noted_after_ns),
            after_ns: before_ns + width_ns,
        }
    }

    #[test]
    fn the_true_time_is_within_the_bound_wherever_in_a_sample_the_ticks_are_noted() {
        for ticks_per_second in [1_000, 19_200_000, 1_000_000_000, 3_333_333_333] {
            let clock = SimulatedClock::new(ticks_per_second, 123_456_789);
            for (early, late) in [(0, 0), (0, 3_000), (2_000, 0), (2_000, 3_000), (999, 1_501)] {
                let samples =
                    [sample(&clock, 5_000_000, 2_000, early), sample(&clock, 905_000_000, 3_000, late)];
                let mapping = ClockMapping::fit(&samples).unwrap();
                for host_ns in [0, 5_000_000, 400_000_000, 905_000_000, 60_000_000_000] {
                    let ticks = clock.ticks_at(host_ns);
                    let (mapped, bound) = (mapping.host_ns(ticks), mapping.error_bound_ns(ticks));
                    assert!(
                        mapped.abs_diff(host_ns) <= bound,
                        "{ticks_per_second} {host_ns} {mapped} {bound}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_mapping_never_runs_backwards() {
        let clock = SimulatedClock::new(777_777_777, 0);
        let samples = [sample(&clock, 1_000, 10, 3), sample(&clock, 9_000, 10, 9)];
        let mapping = ClockMapping::fit(&samples).unwrap();
        let times: Vec<u64> = (0..20_000).map(|ticks| mapping.host_ns(ticks)).collect();
        assert!(times.is_sorted());
        assert!(mapping.host_ns(u64::MAX) >= times[times.len() - 1]);
    }

    #[test]
    fn the_bound_is_tight_between_the_tightest_samples_and_grows_outside() {
        let clock = SimulatedClock::new(1_000_000_000, 0);
        let samples = [
            sample(&clock, 0, 100_000, 0),
            sample(&clock, 1_000_000, 100, 0),
            sample(&clock, 2_000_000, 60, 60),
            sample(&clock, 3_000_000, 100_000, 0),
        ];
        let mapping = ClockMapping::fit(&samples).unwrap();
        assert!(mapping.error_bound_ns(1_500_000) <= 50 + 8);
        assert!(mapping.error_bound_ns(100_000_000) > 1_000);
    }

    #[test]
    fn bad_samples_are_refused() {
        let good = Sample { before_ns: 10, ticks: 10, after_ns: 12 };
        let fit = |samples: &[Sample]| ClockMapping::fit(samples).unwrap_err();
        assert_eq!(fit(&[]), CalibrationError::TooFewSamples { count: 0 });
        assert_eq!(fit(&[good]), CalibrationError::TooFewSamples { count: 1 });
        assert_eq!(fit(&[good, good]), CalibrationError::StoodStill);
        let backwards = Sample { before_ns: 30, ticks: 40, after_ns: 29 };
        assert_eq!(fit(&[good, backwards]), CalibrationError::Backwards { index: 1 });
        assert_eq!(fit(&[good, backwards]).to_string(), "sample 1 ends before it begins");
    }

    #[test]
    fn extreme_ticks_do_not_overflow() {
        let samples = [
            Sample { before_ns: 0, ticks: 0, after_ns: 0 },
            Sample { before_ns: u64::MAX, ticks: 1, after_ns: u64::MAX },
        ];
        let steep = ClockMapping::fit(&samples).unwrap();
        assert_eq!(steep.host_ns(0), 0);
        assert_eq!(steep.host_ns(u64::MAX), u64::MAX);
        assert_eq!(steep.error_bound_ns(u64::MAX), u64::MAX);
    }
}
