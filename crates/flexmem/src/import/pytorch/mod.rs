//! PyTorch's memory snapshots, as `torch.cuda.memory._dump_snapshot()` writes them, of all generations since 2022:
//! `device_traces` with one list of events for each device, or a `history` of each block and no events, or segments
//! alone (also as a bare list, from `torch.cuda.memory_snapshot()`).
//!
//! Sizes of events are requested ones; blocks have `size`, rounded, and `requested_size`.

mod held;
mod keys;
mod pieces;
mod shapes;
mod timeline;

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};

use flex_trace::record::{BlockSnapshot, ClockOrigin, Device, Frame, History, RegionState, Remark, Source};
use flex_trace::{Action, Event, FrameId, Record, StackId, StringId, WriteError, Writer};

use self::pieces::{Annotation, Block, Contradiction, Segment};
use self::shapes::Shapes;
use self::timeline::Timelines;
use super::ImportError;
use super::bytes::Bytes;
use super::pickle::{self, Fault, Heap, Sharing, Value};

/// The longest text of a trace, in bytes; longer ones are cut.
const MAX_TEXT_BYTES: usize = 4 << 10;

/// More devices than any machine has.
const MAX_DEVICES: usize = 4096;

/// What is impossible is said in words so many times.
const MAX_TOLD: usize = 100;

/// The most settings that are kept. PyTorch has some thirty.
const MAX_SETTINGS: usize = 500;

/// Reads a snapshot and writes it as a trace.
pub(super) fn import<R: Read, W: Write>(
    input: R,
    name: &str,
    writer: &mut Writer<W>,
    sharing: Sharing,
) -> Result<(), ImportError> {
    let mut input = Bytes::new(input);
    let (mut heap, mut timelines) = (keys::heap(sharing), Timelines::new());
    let mut shapes = Shapes::new(&mut timelines);
    let root = pickle::read(&mut input, &mut heap, &mut shapes)?;
    let contents = Contents::take(root, &mut heap, &mut shapes).map_err(|fault| input.fault(fault))?;
    let Shapes { frames, stacks, annotations, contradictions, .. } = shapes;
    timelines.finish(&contents.segments);

    let kind = "PyTorch snapshot";
    let mut output = Output { writer, heap: &heap, given: Vec::new() };
    output.write(&Record::Source(Source { producer: "flexmem", kind, name }))?;
    output.write(&Record::Clock(ClockOrigin::Unix))?;
    for (key, value) in &contents.settings {
        output.write(&Record::Setting { key: cut(key), value: cut(value) })?;
    }
    for (index, frame) in frames.iter().enumerate() {
        output.text(frame.function)?;
        output.text(frame.file)?;
        let (function, file) = (StringId(frame.function.0), StringId(frame.file.0));
        output.write(&Record::Frame(Frame {
            id: FrameId(index as u32),
            function,
            file,
            line: frame.line,
        }))?;
    }
    for (index, stack) in stacks.iter().enumerate() {
        output.write(&Record::Stack { id: StackId(index as u32), frames: (&**stack).into() })?;
    }
    output.devices(&timelines)?;
    output.contradictions(&contradictions)?;
    for &name in &timelines.other_actions {
        output.text(pickle::Text(name))?;
    }
    let (events, records) = timelines.into_events()?;
    output.writer.append_frames(events, records)?;
    output.annotations(&annotations)?;
    output.segments(&contents.segments)
}

/// What is left of the pickle when its events are gone.
struct Contents {
    segments: Vec<Segment>,
    settings: Vec<(String, String)>,
}

impl Contents {
    fn take(root: Value, heap: &mut Heap, shapes: &mut Shapes<'_>) -> Result<Self, Fault> {
        match root {
            Value::List(list) => {
                let segments = shapes.take_segments(heap.list(list)?, heap)?;
                Ok(Contents { segments, settings: Vec::new() })
            }
            Value::Dict(dict) => {
                let entries = heap.dict(dict)?.to_vec();
                let find = |key| entries.iter().rev().find(|(found, _)| *found == Value::Text(key));
                let Some(&(_, Value::List(segments))) = find(keys::SEGMENTS) else {
                    return Err(not_a_snapshot("a dict without a list of segments"));
                };
                let segments = shapes.take_segments(heap.list(segments)?, heap)?;
                if let Some(&(_, Value::List(traces))) = find(keys::DEVICE_TRACES) {
                    take_leftover_events(traces, heap, shapes)?;
                }
                if let Some(&(_, Value::List(histories))) = find(keys::HISTORY) {
                    shapes.lost_events(heap.list(histories)?, heap)?;
                }
                let settings = find(keys::ALLOCATOR_SETTINGS).map(|&(_, settings)| settings);
                Ok(Contents {
                    segments,
                    settings: settings.map_or(Ok(Vec::new()), |value| texts(value, heap))?,
                })
            }
            other => Err(not_a_snapshot(other.kind())),
        }
    }
}

fn not_a_snapshot(found: &str) -> Fault {
    Fault::Contents(format!(
        "the pickle is not a memory snapshot of PyTorch: expected its segments, found {found}"
    ))
}

/// Events that are still in their lists.
fn take_leftover_events(traces: pickle::Slot, heap: &mut Heap, shapes: &mut Shapes<'_>) -> Result<(), Fault> {
    let traces = heap.list(traces)?.to_vec();
    if traces.len() > MAX_DEVICES {
        let fault = format!("device_traces: expected at most {MAX_DEVICES} devices, found {}", traces.len());
        return Err(Fault::Contents(fault));
    }
    let mut seen = HashMap::new();
    for (device, trace) in traces.into_iter().enumerate() {
        shapes.know_device(device)?;
        let Value::List(trace) = heap.current(trace) else {
            return Err(Fault::Contents(format!("device_traces: expected lists, found {}", trace.kind())));
        };
        let first = *seen.entry(trace).or_insert(device);
        if first != device && shapes.has_taken_events_of(first) {
            return Err(Fault::Shared("two devices have one list of events"));
        }
        let events = heap.list(trace)?.to_vec();
        shapes.take_events(device, &events, heap)?;
    }
    Ok(())
}

/// The entries of a dict of settings, as text; those of a dict within it with both keys. Not more than a snapshot has,
/// since a small pickle can name one dict many times.
fn texts(settings: Value, heap: &Heap) -> Result<Vec<(String, String)>, Fault> {
    let Value::Dict(dict) = settings else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for &(key, value) in heap.dict(dict)?.iter().take(MAX_SETTINGS) {
        let key = text(key, heap);
        match value {
            Value::Dict(inner) => {
                for &(inner_key, inner_value) in heap.dict(inner)?.iter().take(MAX_SETTINGS) {
                    all.push((format!("{key}.{}", text(inner_key, heap)), text(inner_value, heap)));
                }
            }
            value => all.push((key, text(value, heap))),
        }
        all.truncate(MAX_SETTINGS);
    }
    Ok(all)
}

fn text(value: Value, heap: &Heap) -> String {
    match value {
        Value::Text(text) => cut(heap.text(text)).to_owned(),
        Value::Bool(flag) => if flag { "True" } else { "False" }.to_owned(),
        Value::Float(number) => number.to_string(),
        Value::Int { negative: true, bits } => (bits as i64).to_string(),
        Value::Int { bits, .. } => bits.to_string(),
        Value::None => "None".to_owned(),
        other => other.kind().to_owned(),
    }
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The trace that is written.
struct Output<'w, W: Write> {
    writer: &'w mut Writer<W>,
    heap: &'w Heap,
    /// Whether a text was given already.
    given: Vec<bool>,
}

impl<W: Write> Output<'_, W> {
    fn write(&mut self, record: &Record<'_>) -> Result<(), WriteError> {
        self.writer.write(record)
    }

    /// Gives a text before its first use.
    fn text(&mut self, text: pickle::Text) -> Result<(), WriteError> {
        let index = text.0 as usize;
        if self.given.len() <= index {
            self.given.resize(index + 1, false);
        }
        if std::mem::replace(&mut self.given[index], true) {
            return Ok(());
        }
        self.writer.write(&Record::String { id: StringId(text.0), text: cut(self.heap.text(text)) })
    }

    fn devices(&mut self, timelines: &Timelines) -> Result<(), WriteError> {
        for (&device, timeline) in &timelines.devices {
            self.write(&Record::Device(Device { device, name: None, capacity_bytes: None }))?;
            self.write(&Record::History(History {
                device,
                recorded: timeline.recorded,
                reserved_before_bytes: timeline.recorded.then_some(timeline.reserved_before_bytes),
                contradictions: timeline.contradictions,
                baseline_freed: timeline.baseline_freed,
            }))?;
            for block in timeline.baseline.iter().filter(|_| timeline.recorded) {
                let (address, size_bytes, stream) = (block.address.into(), block.size_bytes, block.stream);
                let action = Action::Baseline { address, size_bytes, stream };
                let stack = block.stack.map(StackId);
                self.write(&Record::Event(Event { stack, ..Event::new(device, action) }))?;
            }
            if let Some(odd) = timeline.first_odd {
                let events = timeline.odd_events;
                let these =
                    if events == 1 { "1 event is".to_owned() } else { format!("{events} events are") };
                self.impossible(device, &format!("{these} left out: of the first, {odd}"))?;
            }
            if timeline.lost_events > 0 {
                let lost = Action::Lost { events: timeline.lost_events };
                self.write(&Record::Event(Event::new(device, lost)))?;
            }
        }
        Ok(())
    }

    /// What is impossible: the first of it in words, since a damaged file may have much of the same.
    fn contradictions(&mut self, contradictions: &[Contradiction]) -> Result<(), WriteError> {
        let (told, rest) = contradictions.split_at(contradictions.len().min(MAX_TOLD));
        for contradiction in told {
            self.impossible(contradiction.device, &contradiction.text)?;
        }
        let mut others: BTreeMap<u32, u64> = BTreeMap::new();
        rest.iter().for_each(|contradiction| *others.entry(contradiction.device).or_default() += 1);
        for (device, segments) in others {
            self.impossible(device, &format!("so it is with {segments} more of its segments"))?;
        }
        Ok(())
    }

    fn impossible(&mut self, device: u32, text: &str) -> Result<(), WriteError> {
        self.write(&Record::Remark(Remark { device: Some(device), impossible: true, text }))
    }

    fn annotations(&mut self, annotations: &[Annotation]) -> Result<(), WriteError> {
        for annotation in annotations {
            self.text(annotation.name)?;
            let action = Action::Annotation { name: StringId(annotation.name.0), begins: annotation.begins };
            let event = Event { time_ns: annotation.time_ns, ..Event::new(annotation.device, action) };
            self.write(&Record::Event(event))?;
        }
        Ok(())
    }

    fn segments(&mut self, segments: &[Segment]) -> Result<(), ImportError> {
        for segment in segments {
            self.write(&Record::RegionState(RegionState {
                device: segment.device,
                address: segment.address.into(),
                size_bytes: segment.size_bytes,
                stream: segment.stream,
                pool: segment.pool,
                small: segment.small,
                expandable: segment.expandable,
                allocated_bytes: segment.allocated_bytes,
                active_bytes: segment.active_bytes,
                stack: segment.stack.map(StackId),
            }))?;
            for block in &segment.blocks {
                let &Block { size_bytes, requested_bytes, state, stack, .. } = block;
                let stack = stack.map(StackId);
                self.write(&Record::Block(BlockSnapshot { size_bytes, requested_bytes, state, stack }))?;
            }
        }
        Ok(())
    }
}
