//! Events: what a history keeps of one thing that happened, and how an entry of the ring holds it.
//!
//! An entry is [`WORDS`] numbers. Which field is in which word is said once, in [`Entry`]; a kind leaves the words that
//! it has no use for at 0. Pure values; no lock.

use std::time::Duration;

use crate::address::VirtualAddress;
use crate::gate::Generation;
use crate::pressure::{ReclaimReport, SkipReason};
use crate::units::RegionId;

/// Numbers of an entry.
pub(super) const WORDS: usize = 7;

/// One thing that happened on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Which event it is of all that were ever recorded, from 0. Of two events of one block, or of one thread, the
    /// later one has the higher number.
    pub sequence: u64,
    /// When, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The system's number of the thread; of a collection that of the thread whose request it ran for, wherever it ran.
    pub thread_id: u32,
    /// Where in the program, as the provider of sites has it; 0 if it was not asked or did not know.
    pub site: u32,
    /// What.
    pub kind: EventKind,
}

/// A block of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventBlock {
    /// Where it starts.
    pub address: VirtualAddress,
    /// Its size in bytes, rounded up.
    pub size_bytes: u64,
    /// Bytes asked for.
    pub requested_bytes: u64,
}

/// A region of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventRegion {
    /// The device's id.
    pub region_id: RegionId,
    /// The host address of its first byte; 0 if the device is not host-addressable.
    pub host_base: u64,
    /// Its size in bytes.
    pub size_bytes: u64,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A block was handed out; an interleaved allocation has an event for each chunk.
    Allocated(EventBlock),
    /// A block was freed and could be used again at once.
    Freed(EventBlock),
    /// A block was freed by its owner, while the allocator was busy.
    FreeRequested(EventBlock),
    /// A block that was freed before could be used again.
    FreeCompleted(EventBlock),
    /// A region came from the device.
    RegionAcquired(EventRegion),
    /// A region went back to the device.
    RegionReleased(EventRegion),
    /// A request found no room although some state of the device could serve it.
    PressureBegan {
        /// Bytes asked for.
        requested_bytes: u64,
        /// Free bytes in the regions it may use.
        free_bytes: u64,
        /// The largest free block in them.
        largest_free_bytes: u64,
    },
    /// That request ended.
    PressureEnded(PressureOutcome),
    /// A collection ran for a request of this device, or for one of another device and freed memory of this one.
    Collected {
        /// Which generations.
        generation: Generation,
        /// Unreachable objects found.
        objects: u64,
        /// Bytes of this device that it freed.
        reclaimed_bytes: u64,
        /// How long it took.
        elapsed: Duration,
        /// The device of the request: [`AllocatorOptions::ordinal`](crate::AllocatorOptions).
        for_device: u32,
    },
    /// A request failed for want of memory.
    OutOfMemory {
        /// Bytes asked for.
        requested_bytes: u64,
        /// Free bytes in the regions it may use.
        free_bytes: u64,
        /// The largest free block in them.
        largest_free_bytes: u64,
    },
    /// The blocks were copied for a snapshot that shows the events before this one.
    SnapshotTaken,
}

/// How a request under pressure ended, and what was tried for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PressureOutcome {
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// It got its memory.
    pub rescued: bool,
    /// From its failed search to its end.
    pub elapsed: Duration,
    /// Young collections that ran for it.
    pub young_collections: u32,
    /// Full collections that ran for it.
    pub full_collections: u32,
    /// Bytes of this device that they freed.
    pub reclaimed_bytes: u64,
    /// Why none ran.
    pub skipped: Option<SkipReason>,
    /// Its deadline passed.
    pub timed_out: bool,
}

impl PressureOutcome {
    pub(crate) fn new(
        requested_bytes: u64,
        rescued: bool,
        elapsed: Duration,
        report: &ReclaimReport,
    ) -> Self {
        PressureOutcome {
            requested_bytes,
            rescued,
            elapsed,
            young_collections: report.young_collections,
            full_collections: report.full_collections,
            reclaimed_bytes: report.reclaimed_bytes,
            skipped: report.skipped.filter(|_| report.young_collections + report.full_collections == 0),
            timed_out: report.timed_out || report.hooks_timed_out,
        }
    }
}

/// The numbers of the kinds in an entry.
mod number {
    pub(super) const ALLOCATED: u8 = 1;
    pub(super) const FREE_REQUESTED: u8 = 2;
    pub(super) const FREE_COMPLETED: u8 = 3;
    pub(super) const REGION_ACQUIRED: u8 = 4;
    pub(super) const REGION_RELEASED: u8 = 5;
    pub(super) const PRESSURE_BEGAN: u8 = 6;
    pub(super) const PRESSURE_ENDED: u8 = 7;
    pub(super) const COLLECTED: u8 = 8;
    pub(super) const OUT_OF_MEMORY: u8 = 9;
    pub(super) const SNAPSHOT_TAKEN: u8 = 10;
    /// Requested and completed at once.
    pub(super) const FREED: u8 = 11;
}

/// Kinds of events, as a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventKinds(u16);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        impl EventKinds {
            /// None.
            pub const NONE: EventKinds = EventKinds(0);
            $($(#[$doc])* pub const $name: EventKinds = EventKinds(1 << number::$name);)*
        }
    };
}

kinds! {
    /// [`EventKind::Allocated`].
    ALLOCATED,
    /// [`EventKind::FreeRequested`], and half of [`EventKind::Freed`].
    FREE_REQUESTED,
    /// [`EventKind::FreeCompleted`], and half of [`EventKind::Freed`].
    FREE_COMPLETED,
    /// [`EventKind::RegionAcquired`].
    REGION_ACQUIRED,
    /// [`EventKind::RegionReleased`].
    REGION_RELEASED,
    /// [`EventKind::PressureBegan`].
    PRESSURE_BEGAN,
    /// [`EventKind::PressureEnded`].
    PRESSURE_ENDED,
    /// [`EventKind::Collected`].
    COLLECTED,
    /// [`EventKind::OutOfMemory`].
    OUT_OF_MEMORY,
    /// [`EventKind::SnapshotTaken`].
    SNAPSHOT_TAKEN,
}

impl EventKinds {
    pub(super) const fn bits(self) -> u16 {
        self.0
    }

    pub(super) const fn from_bits(bits: u16) -> EventKinds {
        EventKinds(bits)
    }

    /// These and others.
    #[must_use]
    pub const fn with(self, others: EventKinds) -> EventKinds {
        EventKinds(self.0 | others.0)
    }

    /// Whether all of `others` are among these.
    #[inline]
    pub const fn contain(self, others: EventKinds) -> bool {
        self.0 & others.0 == others.0
    }
}

/// The words of an entry, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Entry {
    pub(super) time_ns: u64,
    pub(super) thread_id: u32,
    pub(super) site: u32,
    pub(super) kind: u8,
    /// A generation, an outcome.
    pub(super) detail: u32,
    /// Region id, collections, or the device of a request.
    pub(super) place: u64,
    /// Offset, host address, largest free block, or nanoseconds.
    pub(super) offset: u64,
    /// Size, free or reclaimed bytes.
    pub(super) size: u64,
    /// Requested bytes, or objects.
    pub(super) requested: u64,
}

const RESCUED: u32 = 1;
const TIMED_OUT: u32 = 1 << 1;
const SKIP_SHIFT: u32 = 8;

impl Entry {
    /// What to keep of an event.
    pub(super) fn new(kind: &EventKind) -> Entry {
        let entry = |kind| Entry { kind, ..Entry::default() };
        match *kind {
            EventKind::Allocated(block) => Entry::of_block(number::ALLOCATED, block),
            EventKind::FreeRequested(block) => Entry::of_block(number::FREE_REQUESTED, block),
            EventKind::FreeCompleted(block) => Entry::of_block(number::FREE_COMPLETED, block),
            EventKind::Freed(block) => Entry::of_block(number::FREED, block),
            EventKind::RegionAcquired(region) => Entry::of_region(number::REGION_ACQUIRED, region),
            EventKind::RegionReleased(region) => Entry::of_region(number::REGION_RELEASED, region),
            EventKind::PressureBegan { requested_bytes, free_bytes, largest_free_bytes } => Entry {
                requested: requested_bytes,
                size: free_bytes,
                offset: largest_free_bytes,
                ..entry(number::PRESSURE_BEGAN)
            },
            EventKind::PressureEnded(outcome) => Entry::of_outcome(number::PRESSURE_ENDED, &outcome),
            EventKind::Collected { generation, objects, reclaimed_bytes, elapsed, for_device } => Entry {
                detail: u32::from(generation == Generation::Full),
                place: for_device.into(),
                requested: objects,
                size: reclaimed_bytes,
                offset: nanoseconds(elapsed),
                ..entry(number::COLLECTED)
            },
            EventKind::OutOfMemory { requested_bytes, free_bytes, largest_free_bytes } => Entry {
                requested: requested_bytes,
                size: free_bytes,
                offset: largest_free_bytes,
                ..entry(number::OUT_OF_MEMORY)
            },
            EventKind::SnapshotTaken => entry(number::SNAPSHOT_TAKEN),
        }
    }

    fn of_block(kind: u8, block: EventBlock) -> Entry {
        let VirtualAddress { region_id, offset_bytes } = block.address;
        Entry {
            kind,
            place: region_id.0,
            offset: offset_bytes,
            size: block.size_bytes,
            requested: block.requested_bytes,
            ..Entry::default()
        }
    }

    fn of_region(kind: u8, region: EventRegion) -> Entry {
        let (place, offset, size) = (region.region_id.0, region.host_base, region.size_bytes);
        Entry { kind, place, offset, size, ..Entry::default() }
    }

    fn of_outcome(kind: u8, outcome: &PressureOutcome) -> Entry {
        let skipped =
            SkipReason::ALL.iter().position(|&reason| Some(reason) == outcome.skipped).map_or(0, |at| at + 1);
        let flags = [(outcome.rescued, RESCUED), (outcome.timed_out, TIMED_OUT)];
        let flags: u32 = flags.into_iter().filter_map(|(set, flag)| set.then_some(flag)).sum();
        Entry {
            kind,
            detail: flags | (skipped as u32) << SKIP_SHIFT,
            place: u64::from(outcome.young_collections) << 32 | u64::from(outcome.full_collections),
            offset: nanoseconds(outcome.elapsed),
            size: outcome.reclaimed_bytes,
            requested: outcome.requested_bytes,
            ..Entry::default()
        }
    }

    /// What of a free is wanted, when some kinds are not: all, one half, or nothing.
    pub(super) fn without(mut self, unwanted: EventKinds) -> Option<Entry> {
        if self.kind == number::FREED {
            self.kind = match (
                unwanted.contain(EventKinds::FREE_REQUESTED),
                unwanted.contain(EventKinds::FREE_COMPLETED),
            ) {
                (false, false) => number::FREED,
                (false, true) => number::FREE_REQUESTED,
                (true, false) => number::FREE_COMPLETED,
                (true, true) => return None,
            };
            return Some(self);
        }
        (!unwanted.contain(EventKinds(1 << self.kind))).then_some(self)
    }

    pub(super) fn to_words(self) -> [u64; WORDS] {
        [
            self.time_ns,
            u64::from(self.thread_id) << 32 | u64::from(self.site),
            u64::from(self.detail) << 32 | u64::from(self.kind),
            self.place,
            self.offset,
            self.size,
            self.requested,
        ]
    }

    pub(super) fn from_words(words: [u64; WORDS]) -> Entry {
        let [time_ns, thread_and_site, detail_and_kind, place, offset, size, requested] = words;
        Entry {
            time_ns,
            thread_id: (thread_and_site >> 32) as u32,
            site: thread_and_site as u32,
            kind: detail_and_kind as u8,
            detail: (detail_and_kind >> 32) as u32,
            place,
            offset,
            size,
            requested,
        }
    }

    /// The event that the entry stands for; `None` for words that no event has.
    pub(super) fn event(&self, sequence: u64) -> Option<Event> {
        let kind = self.event_kind()?;
        let Entry { time_ns, thread_id, site, .. } = *self;
        Some(Event { sequence, time_ns, thread_id, site, kind })
    }

    fn event_kind(&self) -> Option<EventKind> {
        let (requested_bytes, free_bytes, largest_free_bytes) = (self.requested, self.size, self.offset);
        Some(match self.kind {
            number::ALLOCATED => EventKind::Allocated(self.block()),
            number::FREE_REQUESTED => EventKind::FreeRequested(self.block()),
            number::FREE_COMPLETED => EventKind::FreeCompleted(self.block()),
            number::FREED => EventKind::Freed(self.block()),
            number::REGION_ACQUIRED => EventKind::RegionAcquired(self.region()),
            number::REGION_RELEASED => EventKind::RegionReleased(self.region()),
            number::PRESSURE_BEGAN => {
                EventKind::PressureBegan { requested_bytes, free_bytes, largest_free_bytes }
            }
            number::PRESSURE_ENDED => EventKind::PressureEnded(self.outcome()),
            number::COLLECTED => EventKind::Collected {
                generation: if self.detail == 0 { Generation::Young } else { Generation::Full },
                objects: self.requested,
                reclaimed_bytes: self.size,
                elapsed: Duration::from_nanos(self.offset),
                for_device: self.place as u32,
            },
            number::OUT_OF_MEMORY => {
                EventKind::OutOfMemory { requested_bytes, free_bytes, largest_free_bytes }
            }
            number::SNAPSHOT_TAKEN => EventKind::SnapshotTaken,
            _ => return None,
        })
    }

    fn block(&self) -> EventBlock {
        let address = VirtualAddress { region_id: RegionId(self.place), offset_bytes: self.offset };
        EventBlock { address, size_bytes: self.size, requested_bytes: self.requested }
    }

    fn region(&self) -> EventRegion {
        EventRegion { region_id: RegionId(self.place), host_base: self.offset, size_bytes: self.size }
    }

    fn outcome(&self) -> PressureOutcome {
        let skipped = (self.detail >> SKIP_SHIFT).checked_sub(1);
        PressureOutcome {
            requested_bytes: self.requested,
            rescued: self.detail & RESCUED != 0,
            elapsed: Duration::from_nanos(self.offset),
            young_collections: (self.place >> 32) as u32,
            full_collections: self.place as u32,
            reclaimed_bytes: self.size,
            skipped: skipped.and_then(|index| SkipReason::ALL.get(index as usize).copied()),
            timed_out: self.detail & TIMED_OUT != 0,
        }
    }
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
