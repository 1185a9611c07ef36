//! One device's history as the stream reads it: from where it was to where it is now. No lock of its own.

use flex::history::Event;
use flex::{FlexAllocator, FlexError, RegionSnapshot};

/// So many missing events may be ones that threads are just writing. More were overwritten.
const MAY_BE_WRITTEN: u64 = 64;

/// A device whose events are drained.
pub(crate) struct Source {
    pub(crate) allocator: FlexAllocator,
    /// Its number.
    pub(crate) device: u32,
    /// The number of the first event that was not drained.
    next: u64,
    /// The event that was waited for last time.
    awaited: Option<u64>,
    /// How many events without numbers are counted.
    late: u64,
    /// How often recording had begun.
    recordings: u64,
}

/// What came since the last time.
#[derive(Default)]
pub(crate) struct Batch {
    /// The number of the first, if it was there.
    first: u64,
    /// Those that were still there.
    pub(crate) events: Vec<Event>,
    /// How many were not. They count as before the events.
    pub(crate) lost: u64,
    /// Nothing was recorded for a while before the events, and nobody knows what happened then.
    pub(crate) interrupted: bool,
}

impl Batch {
    /// The events from a number on.
    pub(crate) fn events_from(&self, next: u64) -> &[Event] {
        &self.events[self.events.partition_point(|event| event.sequence < next)..]
    }

    /// How many from a number on are lost. Missing ones count as the oldest.
    pub(crate) fn lost_from(&self, next: u64) -> u64 {
        let before = next.saturating_sub(self.first);
        let there = (self.events.len() - self.events_from(next).len()) as u64;
        self.lost.saturating_sub(before.saturating_sub(there))
    }

    /// Whether it says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.lost == 0 && !self.interrupted
    }
}

/// The state of a device, and where its events go on from there.
pub(crate) struct Start {
    pub(crate) regions: Vec<RegionSnapshot>,
    /// The number of the first event after it.
    pub(crate) next: u64,
}

impl Source {
    /// A device from now on.
    ///
    /// # Errors
    /// [`FlexError::Forked`] in a forked child.
    pub(crate) fn new(allocator: FlexAllocator, device: u32) -> Result<Source, FlexError> {
        let next = allocator.next_event();
        let recorded = allocator.drain_events(next)?;
        let (late, recordings) = (recorded.late, recorded.recordings);
        Ok(Source { allocator, device, next, awaited: None, late, recordings })
    }

    /// Drains what was recorded since the last call. An event that a thread is just writing is waited for, once; what a
    /// recording has left that has ended comes before what the next one has begun with. In a forked child there is
    /// nothing.
    pub(crate) fn drain(&mut self) -> Batch {
        let first = self.next;
        let Ok(recorded) = self.allocator.drain_events(first) else { return Batch::default() };
        let (mut events, mut next) = (recorded.events, recorded.next);
        let is_another = self.recordings != recorded.recordings;
        let interrupted = is_another && recorded.began <= first;
        if interrupted {
            self.recordings = recorded.recordings;
        } else if is_another {
            events.truncate(events.partition_point(|event| event.sequence < recorded.began));
            next = recorded.began.min(next);
        }
        let missing = first_missing(first, next, &events)
            .filter(|_| absent(first, next, &events) <= MAY_BE_WRITTEN && !interrupted);
        match missing {
            Some(missing) if self.awaited != Some(missing) => {
                self.awaited = Some(missing);
                events.truncate(events.partition_point(|event| event.sequence < missing));
                next = missing;
            }
            _ => self.awaited = None,
        }
        self.next = next;
        let late = recorded.late.checked_sub(self.late).unwrap_or(recorded.late);
        self.late = recorded.late;
        let lost = absent(first, next, &events) + late;
        Batch { first, events, lost, interrupted }
    }

    /// What tensors can use; none in a forked child.
    pub(crate) fn capacity_bytes(&self) -> Option<u64> {
        self.allocator.statistics().map(|statistics| statistics.capacity_bytes).ok()
    }

    /// The live blocks, and where the events go on from there.
    pub(crate) fn start(&self) -> Option<Start> {
        let (regions, next) = self.allocator.snapshot_with_position().ok()?;
        Some(Start { regions, next })
    }
}

/// How many numbers from `first` to before `next` no event has.
fn absent(first: u64, next: u64, events: &[Event]) -> u64 {
    (next - first).saturating_sub(events.len() as u64)
}

/// The first number from `first` to before `next` that no event has.
fn first_missing(first: u64, next: u64, events: &[Event]) -> Option<u64> {
    let have = events.iter().map(|event| Some(event.sequence)).chain(std::iter::repeat(None));
    (first..next).zip(have).find(|(number, have)| Some(*number) != *have).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use flex::history::EventKind;

    use super::*;

    fn event(sequence: u64) -> Event {
        Event { sequence, time_ns: 0, thread_id: 1, site: 0, kind: EventKind::SnapshotTaken }
    }

    #[test]
    fn a_trace_that_began_later_has_lost_less() {
        let batch = Batch { first: 5, events: [8, 9].map(event).into(), lost: 3, interrupted: false };
        assert_eq!(
            (batch.lost_from(0), batch.lost_from(5), batch.lost_from(7), batch.lost_from(9)),
            (3, 3, 1, 0)
        );
        assert_eq!(batch.events_from(9), [event(9)]);
        assert_eq!(batch.events_from(0).len(), 2);
    }

    #[test]
    fn the_first_missing_event_is_found_wherever_it_is() {
        let events: Vec<_> = [5, 6, 8].map(event).into();
        assert_eq!(first_missing(5, 9, &events), Some(7));
        assert_eq!(first_missing(4, 9, &events), Some(4));
        assert_eq!(first_missing(5, 7, &events[..2]), None);
        assert_eq!(first_missing(5, 8, &events[..2]), Some(7));
        assert_eq!(first_missing(5, 5, &[]), None);
        assert_eq!((absent(5, 9, &events), absent(4, 9, &events), absent(5, 5, &[])), (1, 2, 0));
    }
}
