//! What happened on each device: events in their order, and the blocks that were live before the first of them.
//!
//! A recording may have begun in mid-life, or have lost its oldest events. What was live by then is found from both
//! ends: a block that is freed without having been allocated was there before, and so was one that is live in the
//! segments without having been allocated. These blocks are the *baseline*.
//!
//! Events go into frames of a trace at once: to memory, and to a temporary file if they are many. What is remembered of
//! them is one entry for each address. A block is free when the free is completed, not when it is requested.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Seek, SeekFrom};

use flex_trace::record::{BlockState, PressureEnd, tried};
use flex_trace::{Action, Event, Record, StackId, StringId, Writer};
use foldhash::fast::RandomState;
use tempfile::SpooledTempFile;

use super::keys::{self, Odd};
use super::pieces::{RawEvent, Segment};
use crate::import::pickle::Fault;

/// Frames of events up to this size stay in memory.
const IN_MEMORY_BYTES: usize = 64 << 20;

/// A block that was live before recording began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Baseline {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) stream: u64,
    pub(super) stack: Option<u32>,
}

/// What is known of one device.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    /// Addresses that events told of; the size of the block that is live there now.
    addresses: HashMap<u64, Option<u64>, RandomState>,
    pub(super) baseline: Vec<Baseline>,
    pub(super) baseline_freed: u64,
    pub(super) contradictions: u64,
    /// Events before the first that are missing, as snapshots of `spyre` say.
    pub(super) lost_events: u64,
    /// What the events acquired, less what they released.
    acquired_bytes: i128,
    pub(super) reserved_before_bytes: u64,
    /// Events that were left out, since a figure of theirs cannot be.
    pub(super) odd_events: u64,
    /// What was odd about the first of them.
    pub(super) first_odd: Option<Odd>,
    /// Whether anything was recorded but snapshots.
    pub(super) recorded: bool,
}

/// All devices.
pub(super) struct Timelines {
    pub(super) devices: BTreeMap<u32, Timeline>,
    /// Texts of actions whose meaning is not known.
    pub(super) other_actions: BTreeSet<u32>,
    /// Events of memory pressure so far, and the one that each thread is in.
    pressures: u64,
    under_pressure: HashMap<(u32, Option<u64>), u64>,
    events: Writer<SpooledTempFile>,
}

impl Timelines {
    pub(super) fn new() -> Self {
        let events = Writer::frames_only(SpooledTempFile::new(IN_MEMORY_BYTES));
        Timelines {
            devices: BTreeMap::new(),
            other_actions: BTreeSet::new(),
            pressures: 0,
            under_pressure: HashMap::new(),
            events,
        }
    }

    /// Takes the next event of a device.
    pub(super) fn event(&mut self, device: u32, raw: &RawEvent) -> Result<(), Fault> {
        let timeline = self.devices.entry(device).or_default();
        let (address, size_bytes) = (raw.address.into(), raw.size_bytes);
        timeline.recorded |= raw.action != keys::SNAPSHOT;
        if raw.odd.is_some() {
            timeline.first_odd = timeline.first_odd.or(raw.odd);
            timeline.odd_events += 1;
            timeline.contradictions += 1;
            return Ok(());
        }
        let action = match raw.action {
            keys::ALLOC => {
                if let Some(old_bytes) = timeline.allocate(raw.address, raw.size_bytes) {
                    let freed = Action::Freed { address, size_bytes: old_bytes };
                    write(&mut self.events, &Event { time_ns: raw.time_ns, ..Event::new(device, freed) })?;
                }
                Action::Allocated {
                    address,
                    size_bytes,
                    rounded_bytes: raw.rounded_bytes,
                    stream: raw.stream,
                }
            }
            keys::FREE_REQUESTED => Action::FreeRequested { address, size_bytes },
            keys::FREE_COMPLETED if !timeline.free(raw) => return Ok(()),
            keys::FREE_COMPLETED => Action::Freed { address, size_bytes },
            keys::SEGMENT_ALLOC | keys::SEGMENT_MAP => {
                timeline.acquired_bytes += i128::from(size_bytes);
                let mapped = raw.action == keys::SEGMENT_MAP;
                Action::RegionAcquired { address, size_bytes, stream: raw.stream, mapped }
            }
            keys::SEGMENT_FREE | keys::SEGMENT_UNMAP => {
                timeline.acquired_bytes -= i128::from(size_bytes);
                Action::RegionReleased { address, size_bytes, mapped: raw.action == keys::SEGMENT_UNMAP }
            }
            keys::OOM => Action::OutOfMemory {
                requested_bytes: size_bytes,
                free_bytes: raw.device_free_bytes,
                largest_free_bytes: raw.largest_free_bytes,
                capacity_bytes: None,
            },
            keys::PRESSURE_BEGIN | keys::PRESSURE_END | keys::GC_COLLECT => self.pressure(device, raw),
            // The size that PyTorch gives is what is active.
            keys::SNAPSHOT => Action::SnapshotTaken { reserved_bytes: None },
            other => {
                self.other_actions.insert(other.0);
                Action::Other { name: StringId(other.0), address, size_bytes }
            }
        };
        let stack = raw.stack.map(StackId);
        write(&mut self.events, &Event { device, time_ns: raw.time_ns, thread: raw.thread, stack, action })
    }

    /// An event of memory pressure. Snapshots do not number them: those of one thread follow each other.
    fn pressure(&mut self, device: u32, raw: &RawEvent) -> Action {
        let (key, keys) = ((device, raw.thread), raw.pressure);
        match raw.action {
            keys::PRESSURE_BEGIN => {
                self.pressures += 1;
                self.under_pressure.insert(key, self.pressures);
                Action::PressureBegan { pressure: self.pressures, requested_bytes: raw.size_bytes }
            }
            keys::PRESSURE_END => Action::PressureEnded {
                pressure: self.under_pressure.remove(&key).unwrap_or(0),
                end: if keys.rescued { PressureEnd::Served } else { PressureEnd::OutOfMemory },
                tried: u64::from(keys.tried_young) * tried::YOUNG_COLLECTION
                    + u64::from(keys.tried_full) * tried::FULL_COLLECTION,
                reclaimed_bytes: keys.reclaimed_bytes,
                duration_ns: keys.duration_ns,
            },
            _ => Action::Collected {
                generation: if keys.full { 2 } else { 1 },
                objects: keys.objects,
                reclaimed_bytes: raw.size_bytes,
                duration_ns: keys.duration_ns,
                pressure: self.collected_for(device, raw),
            },
        }
    }

    /// The pressure event that a collection was for: its thread's on this device. Snapshots that do not say for which
    /// device it ran name the thread that it ran on. If that has none, it was for the only one of the device, and where
    /// there are several nobody knows for which.
    fn collected_for(&self, device: u32, raw: &RawEvent) -> Option<u64> {
        let own = self.under_pressure.get(&(device, raw.thread));
        if raw.pressure.for_device.is_some() {
            return own.copied();
        }
        let mut all = self.under_pressure.iter().filter(|((other, _), _)| *other == device);
        let only = all.next().filter(|_| all.next().is_none());
        own.or(only.map(|(_, number)| number)).copied()
    }

    /// Compares the end with the segments: finds the rest of the baseline and what does not fit.
    pub(super) fn finish(&mut self, segments: &[Segment]) {
        let mut found: BTreeMap<u32, u64> = BTreeMap::new();
        let mut reserved: BTreeMap<u32, i128> = BTreeMap::new();
        for segment in segments {
            let timeline = self.devices.entry(segment.device).or_default();
            *reserved.entry(segment.device).or_default() += i128::from(segment.size_bytes);
            *found.entry(segment.device).or_default() += timeline.compare(segment);
        }
        for (device, timeline) in &mut self.devices {
            let before = reserved.get(device).unwrap_or(&0) - timeline.acquired_bytes;
            timeline.contradictions += u64::from(before < 0);
            timeline.reserved_before_bytes = u64::try_from(before.max(0)).unwrap_or(u64::MAX);
            let live = timeline.addresses.values().flatten().count() as u64;
            timeline.contradictions += live - found.get(device).unwrap_or(&0).min(&live);
            timeline.baseline.sort_unstable();
            timeline.addresses = HashMap::default();
        }
    }

    /// The events, as frames of a trace, and how many records they are.
    pub(super) fn into_events(self) -> io::Result<(SpooledTempFile, u64)> {
        let records = self.events.records();
        let mut frames = self.events.into_output().map_err(io::Error::other)?;
        frames.seek(SeekFrom::Start(0))?;
        Ok((frames, records))
    }
}

impl Timeline {
    /// An allocation. The size of what was live there, which contradicts it.
    fn allocate(&mut self, address: u64, size_bytes: u64) -> Option<u64> {
        let old_bytes = self.addresses.insert(address, Some(size_bytes)).flatten();
        self.contradictions += u64::from(old_bytes.is_some());
        old_bytes
    }

    /// A completed free; false if nothing was live there.
    fn free(&mut self, raw: &RawEvent) -> bool {
        match self.addresses.insert(raw.address, None) {
            Some(Some(_)) => true,
            Some(None) => {
                self.contradictions += 1;
                false
            }
            None => {
                self.baseline_freed += 1;
                let &RawEvent { address, size_bytes, stream, .. } = raw;
                self.baseline.push(Baseline { address, size_bytes, stream, stack: None });
                true
            }
        }
    }

    /// Looks at the live blocks of a segment; how many of them events told of.
    fn compare(&mut self, segment: &Segment) -> u64 {
        let (mut found, mut address) = (0, segment.address);
        for block in &segment.blocks {
            if block.state != BlockState::Free {
                match self.addresses.get(&address) {
                    Some(Some(_)) => found += 1,
                    Some(None) => self.contradictions += 1,
                    None => self.baseline.push(Baseline {
                        address,
                        size_bytes: block.requested_bytes,
                        stream: segment.stream,
                        stack: block.stack,
                    }),
                }
            }
            address += block.size_bytes;
        }
        found
    }
}

fn write(events: &mut Writer<SpooledTempFile>, event: &Event) -> Result<(), Fault> {
    let written = events.write(&Record::Event(*event));
    written.map_err(|error| Fault::Contents(format!("the temporary file of the events: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::pickle::Text;
    use crate::import::pytorch::pieces::PressureKeys;

    fn collected_for(
        timelines: &mut Timelines,
        device: u32,
        thread: u64,
        for_device: Option<u64>,
    ) -> Option<u64> {
        let mut event = event(thread, keys::GC_COLLECT);
        event.pressure.for_device = for_device;
        let Action::Collected { pressure, .. } = timelines.pressure(device, &event) else {
            panic!("it stays a collection");
        };
        pressure
    }

    fn pressure(timelines: &mut Timelines, device: u32, thread: u64, action: Text) {
        timelines.pressure(device, &event(thread, action));
    }

    fn event(thread: u64, action: Text) -> RawEvent {
        RawEvent {
            action,
            address: 0,
            size_bytes: 8,
            stream: 0,
            time_ns: None,
            thread: Some(thread),
            rounded_bytes: None,
            device_free_bytes: None,
            largest_free_bytes: None,
            pressure: PressureKeys::default(),
            stack: None,
            odd: None,
        }
    }

    #[test]
    fn a_collection_is_for_the_request_of_its_thread_or_for_the_only_one_of_the_device() {
        let mut timelines = Timelines::new();
        pressure(&mut timelines, 0, 1, keys::PRESSURE_BEGIN);
        pressure(&mut timelines, 1, 2, keys::PRESSURE_BEGIN);
        assert_eq!(collected_for(&mut timelines, 0, 99, None), Some(1));
        assert_eq!(collected_for(&mut timelines, 1, 99, None), Some(2));
        assert_eq!(collected_for(&mut timelines, 1, 2, Some(1)), Some(2));
        assert_eq!(
            collected_for(&mut timelines, 0, 2, Some(1)),
            None,
            "what it freed here, it freed for the other"
        );
        pressure(&mut timelines, 0, 3, keys::PRESSURE_BEGIN);
        assert_eq!(collected_for(&mut timelines, 0, 3, None), Some(3));
        assert_eq!(collected_for(&mut timelines, 0, 99, None), None, "one of two");
    }
}
