//! What a device was asked for: allocations and frees, in order. Blocks that were live before recording began come
//! first, in the order of addresses, since nobody knows another. Beside them, the kind of segments that served them.

use std::collections::HashMap;

use flex_trace::{Action, ReadError, Record};
use foldhash::fast::RandomState;

use super::Segments;
use crate::TraceFile;

/// One step: an allocation, or a free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Which of the places for live blocks.
    pub place: u32,
    /// What was asked for; 0 to free the block in the place.
    pub size_bytes: u64,
    /// The stream that asked.
    pub stream: u64,
    /// Which of the device's events it is, from 1; 0 before recording.
    pub event: u64,
}

/// See the module's text.
#[derive(Debug, Clone, Default)]
pub struct Operations {
    all: Vec<Operation>,
    places: usize,
    peak_bytes: u64,
    segments: Segments,
}

/// Makes operations from events.
#[derive(Debug, Default)]
struct Builder {
    operations: Operations,
    live: HashMap<u64, (u32, u64), RandomState>,
    vacant: Vec<u32>,
    live_bytes: u64,
    events: u64,
    /// What segments of this device are, as far as any was seen.
    seen: Option<Segments>,
}

impl Operations {
    /// Those of every device of a trace, by its number; devices on which nothing was allocated are left out.
    ///
    /// # Errors
    ///
    /// The temporary file's.
    pub fn of(trace: &mut TraceFile) -> Result<Vec<(u32, Operations)>, ReadError> {
        let mut builders: std::collections::BTreeMap<u32, Builder> = std::collections::BTreeMap::new();
        let mut setting = Segments::Fixed;
        trace.each(|record, _| match record {
            Record::Event(event) => builders.entry(event.device).or_default().take(&event.action),
            Record::RegionState(region) => {
                builders.entry(region.device).or_default().saw_segment(region.expandable);
            }
            Record::Setting { key: "expandable_segments", value: "True" } => setting = Segments::Expandable,
            _ => {}
        })?;
        let all = builders.into_iter().map(|(device, builder)| (device, builder.finish(setting)));
        Ok(all.filter(|(_, operations)| !operations.all.is_empty()).collect())
    }

    /// The steps, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Operation> {
        self.all.iter()
    }

    /// How many places for live blocks there are.
    pub fn places(&self) -> usize {
        self.places
    }

    /// What segments PyTorch's allocator had: those that the trace shows, or else what the settings say. They may ask
    /// for segments that the platform does not have.
    pub fn segments(&self) -> Segments {
        self.segments
    }

    /// The most that was live at once.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }
}

impl Builder {
    fn take(&mut self, action: &Action) {
        let is_before = matches!(action, Action::Baseline { .. });
        if !is_before && !matches!(action, Action::Annotation { .. }) {
            self.events += 1;
        }
        match *action {
            Action::Allocated { address, size_bytes, stream, .. }
            | Action::Baseline { address, size_bytes, stream } => {
                self.allocate(address.0, size_bytes, stream)
            }
            Action::Freed { address, .. } => self.free(address.0),
            Action::RegionAcquired { mapped, .. } => self.saw_segment(mapped),
            _ => {}
        }
    }

    fn saw_segment(&mut self, is_expandable: bool) {
        let is_expandable = is_expandable || self.seen == Some(Segments::Expandable);
        self.seen = Some(if is_expandable { Segments::Expandable } else { Segments::Fixed });
    }

    fn finish(self, setting: Segments) -> Operations {
        Operations { segments: self.seen.unwrap_or(setting), ..self.operations }
    }

    fn allocate(&mut self, address: u64, size_bytes: u64, stream: u64) {
        self.free(address);
        // An allocation of nothing needs no memory.
        if size_bytes == 0 {
            return;
        }
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.operations.places += 1;
            (self.operations.places - 1) as u32
        });
        self.live.insert(address, (place, size_bytes));
        self.live_bytes = self.live_bytes.saturating_add(size_bytes);
        self.operations.peak_bytes = self.operations.peak_bytes.max(self.live_bytes);
        self.operations.all.push(Operation { place, size_bytes, stream, event: self.events });
    }

    fn free(&mut self, address: u64) {
        if let Some((place, size_bytes)) = self.live.remove(&address) {
            self.live_bytes = self.live_bytes.saturating_sub(size_bytes);
            self.vacant.push(place);
            self.operations.all.push(Operation { place, size_bytes: 0, stream: 0, event: self.events });
        }
    }
}
