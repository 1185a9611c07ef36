//! How memory grew: one big step, what stays live, or what is kept free.
//!
//! The events are divided into eight parts of equal number. What stays live shows in the least that was live in each
//! part: temporary memory comes and goes above it. If that least grows from part to part, by a tenth of the peak in
//! all, the program keeps more and more. Only what happened before a request failed counts: after that programs clean
//! up. One block that makes up most of what rose up to the peak says more than the course of the rest, and so does a
//! request for most of it that failed.

use flex_trace::Tables;

use super::answers::Course;
use super::events::{EventTally, Largest};
use super::sites::name;

/// Parts of the history that are compared.
const PARTS: usize = 8;

/// Samples that are kept; when there are more, every other boundary goes.
const MAX_SAMPLES: usize = 4096;

/// Fewer events than this say nothing about the course.
const MIN_EVENTS: u64 = 64;

/// Growth of less than this part of the peak is none.
const NOTICEABLE: u64 = 10;

/// One sample: the least that was live, and the least that was kept free, over some events.
#[derive(Debug, Clone, Copy)]
struct Sample {
    live_bytes: u64,
    cached_bytes: Option<u64>,
}

impl Sample {
    fn join(self, other: Sample) -> Sample {
        Sample {
            live_bytes: self.live_bytes.min(other.live_bytes),
            cached_bytes: self.cached_bytes.zip(other.cached_bytes).map(|(one, other)| one.min(other)),
        }
    }
}

/// What was live over time, in bounded memory.
#[derive(Debug)]
pub(super) struct Samples {
    samples: Vec<Sample>,
    /// Events in each sample but the last.
    stride: u64,
    in_last: u64,
}

impl Default for Samples {
    fn default() -> Self {
        Samples { samples: Vec::new(), stride: 1, in_last: 0 }
    }
}

impl Samples {
    pub(super) fn add(&mut self, live_bytes: u64, reserved_bytes: Option<u64>) {
        let cached_bytes = reserved_bytes.map(|reserved| reserved.saturating_sub(live_bytes));
        let sample = Sample { live_bytes, cached_bytes };
        match self.samples.last_mut() {
            Some(last) if self.in_last < self.stride => {
                *last = last.join(sample);
                self.in_last += 1;
            }
            _ => {
                self.make_room();
                self.samples.push(sample);
                self.in_last = 1;
            }
        }
    }

    fn make_room(&mut self) {
        if self.samples.len() == MAX_SAMPLES {
            self.samples = self
                .samples
                .chunks(2)
                .map(|pair| pair.iter().copied().reduce(Sample::join).expect("two"))
                .collect();
            self.stride *= 2;
        }
    }

    /// How many events there were.
    fn events(&self) -> u64 {
        self.samples.len().saturating_sub(1) as u64 * self.stride + self.in_last
    }

    /// The least of each part; None of too few events.
    fn parts(&self) -> Option<[Sample; PARTS]> {
        if self.events() < MIN_EVENTS {
            return None;
        }
        let boundary = |part: usize| self.samples.len() * part / PARTS;
        let part = |part| self.samples[boundary(part)..boundary(part + 1)].iter().copied();
        Some(std::array::from_fn(|index| part(index).reduce(Sample::join).expect("not empty")))
    }
}

/// Judges a device.
pub(super) fn judge(events: &EventTally, tables: &Tables, top: usize) -> Course {
    if let Some(step) = big_step(events, tables) {
        return step;
    }
    let Some(parts) = events.samples.parts() else { return Course::Unknown };
    // In the first part the program begins: nothing is loaded yet.
    let (first, last) = (parts[1], parts[PARTS - 1]);
    let noticeable = events.peak_bytes() / NOTICEABLE;
    let live: Vec<u64> = parts[1..].iter().map(|part| part.live_bytes).collect();
    if rises(&live) && last.live_bytes - first.live_bytes > noticeable {
        return Course::Growing {
            from_bytes: first.live_bytes,
            to_bytes: last.live_bytes,
            holders: events.peak_holders_since(events.samples.events() / PARTS as u64, tables, top),
        };
    }
    let cached: Option<Vec<u64>> = parts[1..].iter().map(|part| part.cached_bytes).collect();
    if let Some(&[from_bytes, .., to_bytes]) = cached.as_deref()
        && rises(cached.as_deref().unwrap_or_default())
        && to_bytes - from_bytes > noticeable
    {
        return Course::GrowingCache { from_bytes, to_bytes };
    }
    Course::Steady
}

/// A request that failed, or one block that was live at the peak, that is more than half of the rise up to there.
fn big_step(events: &EventTally, tables: &Tables) -> Option<Course> {
    let (rise_bytes, noticeable) = (events.rise_bytes(), events.peak_bytes() / NOTICEABLE);
    let is_most = |step: &Largest| step.size_bytes > rise_bytes / 2;
    let failed = events.largest_failure().filter(|step| is_most(step) && step.size_bytes > noticeable);
    let made = || events.largest_at_peak().filter(|step| is_most(step) && rise_bytes > noticeable);
    let (step, is_failed) = failed.map(|step| (step, true)).or_else(|| made().map(|step| (step, false)))?;
    let site = name(step.stack, tables);
    Some(Course::OneBigStep { size_bytes: step.size_bytes, is_failed, rise_bytes, site })
}

/// Whether a series goes up, nearly always.
fn rises(series: &[u64]) -> bool {
    let falls = series.windows(2).filter(|pair| pair[1] < pair[0]).count();
    falls <= 1 && series.last() > series.first()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_keep_the_least_in_bounded_memory() {
        let mut samples = Samples::default();
        for event in 0..1_000_000_u64 {
            samples.add(event + if event % 2 == 0 { 500 } else { 0 }, Some(2_000_000));
        }
        assert!(samples.samples.len() <= MAX_SAMPLES);
        assert_eq!(samples.events(), 1_000_000);
        let parts = samples.parts().unwrap();
        assert_eq!(parts[0].live_bytes, 1, "the first odd event");
        assert!(parts.windows(2).all(|pair| pair[0].live_bytes < pair[1].live_bytes));
        assert_eq!(parts[PARTS - 1].cached_bytes, Some(2_000_000 - 999_998 - 500));
    }

    #[test]
    fn one_fall_is_forgiven() {
        assert!(rises(&[1, 2, 3, 2, 5]));
        assert!(!rises(&[1, 2, 1, 2, 1]));
        assert!(!rises(&[3, 3, 3]));
    }
}
