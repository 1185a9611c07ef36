//! Events of a history as actions of a trace. No lock.
//!
//! Addresses are those of the host where the device has such, as in memory snapshots. An event names its region; where
//! that begins is known from the regions that were there, and from the events of their coming.

use std::collections::HashMap;

use flex::gate::Generation;
use flex::history::{Event, EventBlock, EventKind, EventRegion, PressureOutcome};
use flex::{RegionId, VirtualAddress};
use flex_trace::record::{PressureEnd, tried};
use flex_trace::{Action, Address};

/// What is remembered of a device from one event to the next.
#[derive(Default)]
pub(crate) struct Converter {
    /// Where each region begins. Those that went back stay: a late event may name them.
    bases: HashMap<RegionId, u64>,
    /// The pressure event that each thread is in, by its number.
    under_pressure: HashMap<u32, u64>,
    pressures: u64,
    capacity_bytes: Option<u64>,
}

impl Converter {
    /// For a device of this capacity, before its first event.
    pub(crate) fn new(capacity_bytes: Option<u64>) -> Self {
        Converter { capacity_bytes, ..Converter::default() }
    }

    /// A region that is there.
    pub(crate) fn note_region(&mut self, region_id: RegionId, base: u64) {
        self.bases.insert(region_id, base);
    }

    /// Where a block is.
    pub(crate) fn address(&self, address: VirtualAddress) -> Address {
        let base = self.bases.get(&address.region_id).copied().unwrap_or(address.region_id.0);
        Address(base.wrapping_add(address.offset_bytes))
    }

    /// What an event says in a trace; `None` for what a trace has no words for.
    pub(crate) fn action(&mut self, event: &Event) -> Option<Action> {
        Some(match event.kind {
            EventKind::Allocated(EventBlock { address, size_bytes, requested_bytes }) => Action::Allocated {
                address: self.address(address),
                size_bytes: requested_bytes,
                rounded_bytes: Some(size_bytes),
                stream: 0,
            },
            EventKind::Freed(block) | EventKind::FreeCompleted(block) => {
                Action::Freed { address: self.address(block.address), size_bytes: block.requested_bytes }
            }
            EventKind::FreeRequested(block) => Action::FreeRequested {
                address: self.address(block.address),
                size_bytes: block.requested_bytes,
            },
            EventKind::RegionAcquired(region) => self.acquired(region),
            EventKind::RegionReleased(region) => Action::RegionReleased {
                address: self.base(region),
                size_bytes: region.size_bytes,
                mapped: false,
            },
            EventKind::PressureBegan { requested_bytes, .. } => {
                self.pressures += 1;
                self.under_pressure.insert(event.thread_id, self.pressures);
                Action::PressureBegan { pressure: self.pressures, requested_bytes }
            }
            EventKind::PressureEnded(outcome) => self.ended(event.thread_id, &outcome),
            EventKind::Collected { generation, objects, reclaimed_bytes, elapsed, .. } => Action::Collected {
                generation: match generation {
                    Generation::Young => 1,
                    Generation::Full => 2,
                },
                objects,
                reclaimed_bytes,
                duration_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
                // None for a collection that ran for another device, where the thread's request is.
                pressure: self.under_pressure.get(&event.thread_id).copied(),
            },
            EventKind::OutOfMemory { requested_bytes, free_bytes, largest_free_bytes } => {
                Action::OutOfMemory {
                    requested_bytes,
                    free_bytes: Some(free_bytes),
                    largest_free_bytes: Some(largest_free_bytes),
                    capacity_bytes: self.capacity_bytes,
                }
            }
            EventKind::SnapshotTaken => Action::SnapshotTaken { reserved_bytes: None },
            _ => return None,
        })
    }

    fn base(&self, region: EventRegion) -> Address {
        Address(if region.host_base == 0 { region.region_id.0 } else { region.host_base })
    }

    fn acquired(&mut self, region: EventRegion) -> Action {
        let address = self.base(region);
        self.note_region(region.region_id, address.0);
        Action::RegionAcquired { address, size_bytes: region.size_bytes, stream: 0, mapped: false }
    }

    fn ended(&mut self, thread_id: u32, outcome: &PressureOutcome) -> Action {
        // The beginning of one that was under way when the trace began, or whose beginning was lost, is not in it.
        let pressure = self.under_pressure.remove(&thread_id).unwrap_or_else(|| {
            self.pressures += 1;
            self.pressures
        });
        let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
        let collections = outcome.young_collections + outcome.full_collections;
        Action::PressureEnded {
            pressure,
            end: if outcome.rescued { PressureEnd::Served } else { PressureEnd::OutOfMemory },
            tried: flag(outcome.young_collections > 0, tried::YOUNG_COLLECTION)
                | flag(outcome.full_collections > 0, tried::FULL_COLLECTION)
                | flag(outcome.rescued && collections == 0, tried::OTHERS_COLLECTION),
            reclaimed_bytes: outcome.reclaimed_bytes,
            duration_ns: u64::try_from(outcome.elapsed.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn began(converter: &mut Converter, thread_id: u32) {
        let kind = EventKind::PressureBegan { requested_bytes: 8, free_bytes: 4, largest_free_bytes: 4 };
        converter.action(&event(thread_id, kind));
    }

    fn event(thread_id: u32, kind: EventKind) -> Event {
        Event { sequence: 0, time_ns: 0, thread_id, site: 0, kind }
    }

    fn collected_for(converter: &mut Converter, thread_id: u32) -> Option<u64> {
        let (objects, reclaimed_bytes, elapsed) = (1, 8, Duration::ZERO);
        let generation = Generation::Full;
        let kind = EventKind::Collected { generation, objects, reclaimed_bytes, elapsed, for_device: 0 };
        let Some(Action::Collected { pressure, .. }) = converter.action(&event(thread_id, kind)) else {
            panic!("it stays a collection");
        };
        pressure
    }

    #[test]
    fn a_collection_is_for_the_request_of_its_thread() {
        let mut converter = Converter::default();
        assert_eq!(collected_for(&mut converter, 1), None);
        began(&mut converter, 1);
        began(&mut converter, 2);
        assert_eq!(collected_for(&mut converter, 1), Some(1));
        assert_eq!(collected_for(&mut converter, 2), Some(2));
        assert_eq!(collected_for(&mut converter, 3), None, "its request is of another device");
    }
}
