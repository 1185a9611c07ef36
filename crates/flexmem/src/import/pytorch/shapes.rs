//! Recognises what a snapshot consists of, while the pickle is read: frames, events, blocks, segments.
//!
//! Each becomes something small: a frame and a stack a number, since most are there many times; an event goes on to its
//! device's timeline when the list of that device takes it. What is not recognised stays as it is. What contradicts
//! itself is written down in words, and the rest is read on.

use std::cell::Cell;
use std::collections::BTreeSet;

use flex_trace::record::BlockState;
use foldhash::fast::RandomState;
use indexmap::IndexSet;

use super::held::{Held, TWICE};
use super::keys::{self, Entries};
use super::pieces::{Annotation, Block, Contradiction, Frame, Owner, PressureKeys, RawEvent, Segment};
use super::timeline::Timelines;
use crate::import::pickle::{Fault, Heap, Object, Place, Slot, Text, Value, Visitor};

/// What dicts become.
mod kind {
    pub(super) const FRAME: u8 = 0;
    pub(super) const STACK: u8 = 1;
    pub(super) const EVENT: u8 = 2;
    pub(super) const BLOCK: u8 = 3;
    pub(super) const SEGMENT: u8 = 4;
    pub(super) const OWNER: u8 = 5;
    pub(super) const ANNOTATION: u8 = 6;
    /// A list whose items were taken.
    pub(super) const TAKEN: u8 = 7;
}

/// The longest stack that is kept; deeper frames are left out.
const MAX_FRAMES: usize = 4096;

/// See the module's text.
pub(super) struct Shapes<'t> {
    pub(super) frames: IndexSet<Frame, RandomState>,
    pub(super) stacks: IndexSet<Box<[u32]>, RandomState>,
    pub(super) annotations: Vec<Annotation>,
    pub(super) contradictions: Vec<Contradiction>,
    timelines: &'t mut Timelines,
    events: Held<RawEvent>,
    blocks: Held<Block>,
    segments: Held<Segment>,
    owners: Held<Owner>,
    /// Devices whose events were taken when their lists took them.
    taken: BTreeSet<usize>,
    /// What was taken out of things that may be shared, in all places.
    copies: u64,
}

/// Copies that a pickle may always have, however short it is.
const ALWAYS_ALLOWED: u64 = 64 << 10;

impl<'t> Shapes<'t> {
    pub(super) fn new(timelines: &'t mut Timelines) -> Self {
        Shapes {
            frames: IndexSet::default(),
            stacks: IndexSet::default(),
            annotations: Vec::new(),
            contradictions: Vec::new(),
            timelines,
            events: Held::default(),
            blocks: Held::default(),
            segments: Held::default(),
            owners: Held::default(),
            taken: BTreeSet::new(),
            copies: 0,
        }
    }

    /// Counts what is about to be taken. A small pickle can name a large list many times.
    fn count(&mut self, items: usize, heap: &Heap) -> Result<(), Fault> {
        if heap.keeps_shared() {
            self.copies += items as u64;
            if self.copies > heap.taken().max(ALWAYS_ALLOWED) {
                return Err(Fault::TooMany(usize::try_from(self.copies).unwrap_or(usize::MAX)));
            }
        }
        Ok(())
    }

    /// Whether events of a device were taken when its list took them.
    pub(super) fn has_taken_events_of(&self, device: usize) -> bool {
        self.taken.contains(&device)
    }

    /// The segments in a list.
    pub(super) fn take_segments(&mut self, items: &[Value], heap: &Heap) -> Result<Vec<Segment>, Fault> {
        let mut segments = Vec::new();
        for &value in items {
            let Value::Object(object @ Object { kind: kind::SEGMENT, .. }) = value else {
                return Err(unlike("a segment with its blocks", value));
            };
            let blocks = self.segments.get(object).map_or(0, |found| found.blocks.len());
            self.count(1 + blocks, heap)?;
            segments.push(self.segments.take(object, heap.keeps_shared())?);
        }
        segments.retain(|segment| !segment.is_nowhere);
        Ok(segments)
    }

    /// Events that stayed in their list, since it was not clear whose it was.
    pub(super) fn take_events(&mut self, device: usize, items: &[Value], heap: &Heap) -> Result<(), Fault> {
        self.count(items.len(), heap)?;
        for &value in items {
            let Value::Object(object @ Object { kind: kind::EVENT, .. }) = value else {
                return Err(unlike("an event", value));
            };
            let event = self.events.take(object, heap.keeps_shared())?;
            self.timelines.event(device_number(device)?, &event)?;
        }
        Ok(())
    }

    /// A device that has a list of events, be it empty.
    pub(super) fn know_device(&mut self, device: usize) -> Result<(), Fault> {
        self.timelines.devices.entry(device_number(device)?).or_default();
        Ok(())
    }

    /// How many events are missing of each device, as snapshots of `spyre` say in their `history`.
    pub(super) fn lost_events(&mut self, histories: &[Value], heap: &Heap) -> Result<(), Fault> {
        let numbers = self.timelines.devices.len();
        for (device, &history) in histories.iter().take(numbers).enumerate() {
            let Value::Dict(dict) = history else { continue };
            let odd = Cell::new(None);
            let entries = Entries { what: "a device's history", entries: heap.dict(dict)?, odd: &odd };
            let lost_events = entries.optional(keys::LOST_EVENTS)?.unwrap_or(0);
            self.timelines.devices.entry(device_number(device)?).or_default().lost_events = lost_events;
        }
        Ok(())
    }

    fn frame(&mut self, entries: Entries<'_>) -> Result<Value, Fault> {
        let line = entries.find(keys::LINE).and_then(Value::as_u64).unwrap_or(0);
        let frame = Frame {
            function: entries.text(keys::NAME)?,
            file: entries.text(keys::FILENAME)?,
            line: u32::try_from(line).unwrap_or(0),
        };
        let index = self.frames.insert_full(frame).0 as u32;
        Ok(Value::Object(Object { kind: kind::FRAME, index }))
    }

    /// The stack of a dict: its list of frames, which becomes a number.
    fn stack(&mut self, entries: Entries<'_>, heap: &mut Heap) -> Result<Option<u32>, Fault> {
        let Some(value) = entries.find(keys::FRAMES) else { return Ok(None) };
        match heap.current(value) {
            Value::Object(Object { kind: kind::STACK, index }) => Ok(Some(index)),
            Value::List(list) => {
                let frames = heap.list(list)?;
                if frames.is_empty() {
                    return Ok(None);
                }
                let frames: Box<[u32]> = frames
                    .iter()
                    .take(MAX_FRAMES)
                    .map(|&frame| frame_number(frame))
                    .collect::<Result<_, _>>()?;
                let index = self.stacks.insert_full(frames).0 as u32;
                heap.replace(list, Value::Object(Object { kind: kind::STACK, index }), true);
                Ok(Some(index))
            }
            other => Err(entries.wrong(keys::FRAMES, "a list of frames", other.kind())),
        }
    }

    fn event(&mut self, entries: Entries<'_>, heap: &mut Heap) -> Result<Value, Fault> {
        let action = entries.text(keys::ACTION)?;
        let address = entries.optional(keys::ADDR)?;
        if address.is_none() && entries.find(keys::ADDR).is_none() && action != keys::OOM {
            return Err(entries.wrong(keys::ADDR, "an address", "nothing"));
        }
        let event = RawEvent {
            action,
            address: address.unwrap_or(0),
            size_bytes: entries.number(keys::SIZE)?,
            stream: entries.identity(keys::STREAM).unwrap_or(0),
            time_ns: entries.identity(keys::TIME_US).and_then(|time_us| time_us.checked_mul(1000)),
            thread: entries.identity(keys::THREAD_ID),
            rounded_bytes: entries.optional(keys::ALLOCATED_SIZE)?,
            device_free_bytes: entries.optional(keys::DEVICE_FREE)?,
            largest_free_bytes: entries.optional(keys::LARGEST_FREE)?,
            pressure: match action {
                keys::PRESSURE_END | keys::GC_COLLECT => PressureKeys::of(entries)?,
                _ => PressureKeys::default(),
            },
            stack: self.stack(entries, heap)?,
            odd: entries.odd.get(),
        };
        Ok(self.events.put(kind::EVENT, event))
    }

    fn owner(&mut self, entries: Entries<'_>, heap: &mut Heap) -> Result<Value, Fault> {
        let requested_bytes = entries.number(keys::REAL_SIZE)?;
        if let Some(odd) = entries.odd.get() {
            return Err(Fault::Contents(format!("a block's history: {odd}")));
        }
        let stack = self.stack(entries, heap)?;
        Ok(self.owners.put(kind::OWNER, Owner { requested_bytes, stack }))
    }

    fn block(&mut self, entries: Entries<'_>, heap: &mut Heap) -> Result<Value, Fault> {
        let state = match entries.text(keys::STATE)? {
            keys::INACTIVE => BlockState::Free,
            keys::ACTIVE_ALLOCATED => BlockState::Live,
            keys::ACTIVE_PENDING_FREE | keys::ACTIVE_AWAITING_FREE => BlockState::PendingFree,
            other => {
                let expected = "one of inactive, active_allocated, active_pending_free, active_awaiting_free";
                return Err(entries.wrong(keys::STATE, expected, heap.text(other)));
            }
        };
        let size_bytes = entries.number(keys::SIZE)?;
        let owner = self.newest_owner(entries, heap)?;
        let requested_bytes = entries.optional(keys::REQUESTED_SIZE)?;
        let block = Block {
            address: entries.optional(keys::ADDRESS)?,
            size_bytes,
            requested_bytes: requested_bytes
                .or(owner.map(|owner| owner.requested_bytes))
                .unwrap_or(size_bytes),
            state,
            stack: self.stack(entries, heap)?.or(owner.and_then(|owner| owner.stack)),
            odd: entries.odd.get(),
        };
        Ok(self.blocks.put(kind::BLOCK, block))
    }

    fn newest_owner(&mut self, entries: Entries<'_>, heap: &mut Heap) -> Result<Option<Owner>, Fault> {
        let list = match entries.find(keys::HISTORY) {
            Some(Value::List(list)) => list,
            Some(Value::Object(Object { kind: kind::TAKEN, .. })) => return Err(TWICE),
            _ => return Ok(None),
        };
        let mut newest = None;
        self.count(heap.list(list)?.len(), heap)?;
        for &value in heap.list(list)? {
            let Value::Object(object @ Object { kind: kind::OWNER, .. }) = value else { continue };
            let owner = self.owners.take(object, heap.keeps_shared())?;
            newest = newest.or(Some(owner));
        }
        empty(list, heap);
        Ok(newest)
    }

    fn segment(&mut self, entries: Entries<'_>, heap: &mut Heap) -> Result<Value, Fault> {
        let blocks = match entries.find(keys::BLOCKS) {
            Some(Value::List(list)) => {
                let blocks = self.take_blocks(heap.list(list)?, heap)?;
                empty(list, heap);
                blocks
            }
            Some(Value::Object(Object { kind: kind::TAKEN, .. })) => return Err(TWICE),
            other => return Err(entries.wrong(keys::BLOCKS, "a list", other.map_or("nothing", Value::kind))),
        };
        let device = entries.identity(keys::DEVICE);
        let found = entries.find(keys::DEVICE).map_or("nothing", Value::kind);
        let device = device.ok_or_else(|| entries.wrong(keys::DEVICE, "the number of a device", found))?;
        let mut segment = Segment {
            device: device_number(device)?,
            address: entries.number(keys::ADDRESS)?,
            size_bytes: entries.number(keys::TOTAL_SIZE)?,
            stream: entries.identity(keys::STREAM).unwrap_or(0),
            pool: pool(entries, heap)?,
            small: entries.find(keys::SEGMENT_TYPE) == Some(Value::Text(keys::SMALL)),
            expandable: entries.flag(keys::IS_EXPANDABLE),
            allocated_bytes: entries.optional(keys::ALLOCATED_SIZE)?,
            active_bytes: entries.optional(keys::ACTIVE_SIZE)?,
            requested_bytes: entries.optional(keys::REQUESTED_SIZE)?,
            stack: self.stack(entries, heap)?,
            blocks,
            is_nowhere: false,
        };
        let device = segment.device;
        let fault = segment.settle(entries.odd.get()).or_else(|| segment.requested_fault());
        self.contradictions.extend(fault.map(|text| Contradiction { device, text }));
        Ok(self.segments.put(kind::SEGMENT, segment))
    }

    fn take_blocks(&mut self, items: &[Value], heap: &Heap) -> Result<Vec<Block>, Fault> {
        self.count(items.len(), heap)?;
        let block = |&value: &Value| match value {
            Value::Object(object) if object.kind == kind::BLOCK => {
                self.blocks.take(object, heap.keeps_shared())
            }
            other => Err(unlike("a block", other)),
        };
        items.iter().map(block).collect()
    }

    fn annotation(&mut self, entries: Entries<'_>) -> Result<Value, Fault> {
        self.annotations.push(Annotation {
            device: device_number(entries.identity(keys::DEVICE).unwrap_or(0))?,
            name: entries.text(keys::NAME)?,
            begins: entries.text(keys::STAGE)? == keys::START,
            time_ns: entries.identity(keys::TIME_US).and_then(|time_us| time_us.checked_mul(1000)),
        });
        Ok(Value::Object(Object { kind: kind::ANNOTATION, index: 0 }))
    }
}

impl Visitor for Shapes<'_> {
    fn dict(&mut self, entries: &[(Value, Value)], heap: &mut Heap) -> Result<Option<Value>, Fault> {
        let has = |key: Text| entries.iter().any(|&(found, _)| found == Value::Text(key));
        let odd = Cell::new(None);
        let named = |what: &'static str| Entries { what, entries, odd: &odd };
        let value = if has(keys::FILENAME) {
            self.frame(named("a frame"))
        } else if has(keys::ACTION) {
            self.event(named("an event"), heap)
        } else if has(keys::TOTAL_SIZE) && has(keys::BLOCKS) {
            self.segment(named("a segment"), heap)
        } else if has(keys::STATE) && has(keys::SIZE) {
            self.block(named("a block"), heap)
        } else if has(keys::REAL_SIZE) {
            self.owner(named("a block's history"), heap)
        } else if has(keys::STAGE) && has(keys::NAME) {
            self.annotation(named("an annotation"))
        } else {
            return Ok(None);
        };
        value.map(Some)
    }

    fn append(&mut self, place: &Place, items: &[Value], heap: &Heap) -> Result<bool, Fault> {
        let is_event = |value: &Value| matches!(value, Value::Object(Object { kind: kind::EVENT, .. }));
        match (place.key, place.index) {
            // What may be shared stays in its lists.
            _ if heap.keeps_shared() => Ok(false),
            (Value::Text(keys::DEVICE_TRACES), Some(device)) if items.iter().all(is_event) => {
                self.take_events(device, items, heap)?;
                self.taken.insert(device);
                Ok(true)
            }
            // They are kept apart.
            (Value::Text(keys::EXTERNAL_ANNOTATIONS), None) => Ok(true),
            _ => Ok(false),
        }
    }
}

/// A list whose items were taken: gone, unless it may be shared.
fn empty(list: Slot, heap: &mut Heap) {
    if !heap.keeps_shared() {
        heap.replace(list, Value::Object(Object { kind: kind::TAKEN, index: 0 }), true);
    }
}

fn unlike(expected: &str, found: Value) -> Fault {
    Fault::Contents(format!("expected {expected}, found {}", found.kind()))
}

fn frame_number(value: Value) -> Result<u32, Fault> {
    match value {
        Value::Object(Object { kind: kind::FRAME, index }) => Ok(index),
        other => Err(unlike("a frame", other)),
    }
}

pub(super) fn device_number(number: impl TryInto<u32>) -> Result<u32, Fault> {
    number.try_into().map_err(|_| Fault::Contents("expected the number of a device below 2^32".to_owned()))
}

/// A private pool: two numbers.
fn pool(entries: Entries<'_>, heap: &Heap) -> Result<(u64, u64), Fault> {
    let Some(Value::List(list)) = entries.find(keys::SEGMENT_POOL_ID) else { return Ok((0, 0)) };
    match heap.list(list)? {
        &[first, second] => Ok((first.as_u64().unwrap_or(0), second.as_u64().unwrap_or(0))),
        _ => Ok((0, 0)),
    }
}
