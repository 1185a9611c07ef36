//! Figures of a device that cannot be: those that contradict each other, and those above what the device has.
//!
//! - `events`: what happened; `regions`: the state at the end. Here: both beside each other, and beside the device.
//!
//! Nothing is said of what may only look wrong: after events were lost, blocks whose end was among them count as live.

mod events;
mod regions;

use super::answers::{DeviceInfo, HistoryState, MemoryInfo};
use super::regions::RegionTally;
pub(super) use events::EventCheck;

/// What cannot be, in words: so many, and how many others there are. A damaged file may have one for each segment.
#[derive(Debug, Default)]
pub(super) struct Impossible {
    pub(super) texts: Vec<String>,
    pub(super) left_out: u64,
    top: usize,
}

impl Impossible {
    pub(super) fn with_room_for(top: usize) -> Impossible {
        Impossible { top, ..Impossible::default() }
    }

    fn add(&mut self, text: String) {
        if self.texts.len() < self.top {
            self.texts.push(text);
        } else {
            self.left_out += 1;
        }
    }

    pub(super) fn extend(&mut self, texts: impl IntoIterator<Item = String>) {
        texts.into_iter().for_each(|text| self.add(text));
    }

    /// Adds all that cannot be of a device.
    pub(super) fn look_at(&mut self, info: &DeviceInfo, events: &EventCheck, regions: &RegionTally) {
        if let Some(capacity) = info.capacity_bytes {
            self.extend(above(capacity, info));
            self.extend(events.above(capacity));
        }
        self.extend(events.impossible());
        if let Some(memory) = &info.memory {
            self.extend(beyond_the_past(memory, info));
        }
        regions::impossible(&regions.regions, self);
    }
}

/// What the file says in several places that the device has.
pub(super) fn capacities(stated: [Option<u64>; 3]) -> Option<String> {
    let mut stated = stated.into_iter().flatten();
    let first = stated.next()?;
    let other = stated.find(|&other| other != first)?;
    Some(format!("the device has {first} bytes in one place of the file, and {other} in another"))
}

/// What is more than the device has.
fn above(capacity: u64, info: &DeviceInfo) -> Vec<String> {
    let reserved = info.memory.as_ref().map_or(0, |memory| memory.reserved_bytes);
    let peak = info.peak.as_ref();
    let is_known = info.history.lost_events == 0 && !info.history.lost_unknown;
    let reserved_peak = peak.and_then(|peak| peak.reserved_peak_bytes).filter(|_| is_known).unwrap_or(0);
    let live_peak = peak.filter(|_| is_known).map_or(0, |peak| peak.live_bytes);
    let mut all = Vec::new();
    if reserved > capacity {
        all.push(format!("{reserved} bytes are reserved, and the device has {capacity}"));
    }
    if reserved_peak > capacity && reserved_peak != reserved {
        all.push(format!("{reserved_peak} bytes were reserved at most, and the device has {capacity}"));
    }
    if live_peak > capacity {
        all.push(format!("{live_peak} bytes were live at the peak, and the device has {capacity}"));
    }
    all
}

/// What is more at the end than it ever was, as a whole history says.
fn beyond_the_past(memory: &MemoryInfo, info: &DeviceInfo) -> Vec<String> {
    let Some(peak) = info.peak.as_ref().filter(|_| info.history.state == HistoryState::Whole) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    let (requested, live_peak) = (memory.requested_bytes, peak.live_bytes);
    if requested > live_peak {
        all.push(format!("{requested} bytes are live at the end, and {live_peak} were at the peak"));
    }
    let reserved = memory.reserved_bytes;
    if let Some(most) = peak.reserved_peak_bytes.filter(|&most| reserved > most) {
        all.push(format!("{reserved} bytes are reserved at the end, and {most} were at most"));
    }
    all
}
