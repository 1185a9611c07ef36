//! How memory grew: one big step, what stays live, or what is kept free.
//!
//! The events are divided into eight parts of equal number. What stays live shows in the least that was live in each
//! part: temporary memory comes and goes above it. If that least grows from part to part, by a tenth of the peak in
//! all, the program keeps more and more. Only what happened before a request failed counts: after that programs clean
//! up.

use flex_trace::Tables;

use super::answers::Course;
use super::events::EventTally;
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

    /// The least of each part.
    fn parts(&self) -> Vec<Sample> {
        let length = self.samples.len().div_ceil(PARTS).max(1);
        let least = |part: &[Sample]| part.iter().copied().reduce(Sample::join).expect("not empty");
        self.samples.chunks(length).map(least).collect()
    }
}

/// Judges a device.
pub(super) fn judge(events: &EventTally, tables: &Tables) -> Course {
    if let Some(step) = big_step(events, tables) {
        return step;
    }
    let parts = events.samples.parts();
    if events.event_count() < MIN_EVENTS || parts.len() < PARTS {
        return Course::Unknown;
    }
    // In the first part the program begins: nothing is loaded yet.
    let (first, last) = (parts[1], parts[parts.len() - 1]);
    let noticeable = events.peak_bytes() / NOTICEABLE;
    let live: Vec<u64> = parts[1..].iter().map(|part| part.live_bytes).collect();
    if rises(&live) && last.live_bytes - first.live_bytes > noticeable {
        return Course::Growing {
            from_bytes: first.live_bytes,
            to_bytes: last.live_bytes,
            sites: events.peak_holders_since(events.event_count() / PARTS as u64, tables, 5),
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

/// One allocation, or a request that failed, that is more than half of the rise.
fn big_step(events: &EventTally, tables: &Tables) -> Option<Course> {
    let rise_bytes = events.rise_bytes();
    if rise_bytes < events.peak_bytes() / NOTICEABLE {
        return None;
    }
    let failed = events.largest_failure().filter(|failed| failed.size_bytes > rise_bytes / 2);
    let made = Some(events.largest).filter(|made| made.size_bytes > rise_bytes / 2 && rise_bytes > 0);
    let step = failed.or(made)?;
    Some(Course::OneBigStep { size_bytes: step.size_bytes, rise_bytes, site: name(step.stack, tables) })
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
        let parts = samples.parts();
        assert_eq!(parts.len(), PARTS);
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
