//! A trace that begins with what is live and goes on with events. No lock.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use flex_trace::record::{ClockOrigin, Device, History, Source as TraceSource};
use flex_trace::{Action, Event as TraceEvent, Header, Record, WriteError, Writer};

use crate::Stacks;
use crate::convert::Converter;
use crate::names::Names;
use crate::source::{Batch, Source, Start};

/// A trace to some output.
pub(crate) struct Sink<W: Write> {
    writer: Writer<W>,
    names: Names,
    stacks: Option<Arc<dyn Stacks>>,
    /// By the number of the device.
    devices: HashMap<u32, Progress>,
}

/// How far one device's events are.
struct Progress {
    converter: Converter,
    /// The number of the first event that is not in the blocks at the beginning.
    next: u64,
    /// Events that are missing from the trace and not yet said to be.
    missing: u64,
    /// An unknown number is missing as well.
    interrupted: bool,
}

impl Progress {
    fn say_what_is_missing<W: Write>(
        &mut self,
        writer: &mut Writer<W>,
        device: u32,
    ) -> Result<(), WriteError> {
        let unknown = std::mem::take(&mut self.interrupted).then_some(0);
        let known = Some(std::mem::take(&mut self.missing)).filter(|&events| events > 0);
        for events in known.into_iter().chain(unknown) {
            writer.write(&Record::Event(TraceEvent::new(device, Action::Lost { events })))?;
        }
        Ok(())
    }
}

impl<W: Write> Sink<W> {
    /// Begins a trace of these devices, without their live blocks, which [`tell_live`](Self::tell_live) adds.
    pub(crate) fn open(
        output: W,
        producer: &str,
        stacks: Option<Arc<dyn Stacks>>,
        sources: &[Source],
    ) -> Result<Self, WriteError> {
        let mut writer = Writer::new(output, Header::default())?;
        let name = std::process::id().to_string();
        writer.write(&Record::Source(TraceSource { producer, kind: "process", name: &name }))?;
        writer.write(&Record::Clock(ClockOrigin::Unix))?;
        for source in sources {
            writer.write(&Record::Device(Device {
                device: source.device,
                name: Some(source.allocator.device().name()),
                capacity_bytes: source.capacity_bytes(),
            }))?;
        }
        writer.flush()?;
        Ok(Sink { writer, names: Names::default(), stacks, devices: HashMap::new() })
    }

    /// Tells the live blocks of each device, with an event at their end that says that this was all. Events go on from
    /// there.
    pub(crate) fn tell_live(&mut self, sources: &[Source]) -> Result<(), WriteError> {
        for source in sources {
            if let Some(start) = source.start() {
                self.baseline(source, &start)?;
            }
        }
        self.writer.flush()
    }

    fn baseline(&mut self, source: &Source, start: &Start) -> Result<(), WriteError> {
        let device = source.device;
        let reserved_before_bytes = Some(start.regions.iter().map(|region| region.size_bytes).sum());
        self.writer.write(&Record::History(History {
            device,
            recorded: source.allocator.is_recording(),
            reserved_before_bytes,
            contradictions: 0,
            baseline_freed: 0,
        }))?;
        let mut converter = Converter::new(source.capacity_bytes());
        for region in &start.regions {
            let base = source.allocator.host_base(region).map_or(region.region_id.0, |base| base as u64);
            converter.note_region(region.region_id, base);
            for block in region.blocks.iter().filter(|block| block.occupied && !block.freeing) {
                let stack = self.names.stack(&mut self.writer, block.site, self.stacks.as_deref())?;
                let action = Action::Baseline {
                    address: (base + block.offset_bytes).into(),
                    size_bytes: block.requested_bytes,
                    stream: 0,
                };
                let time_ns = Some(block.allocated_ns).filter(|&time_ns| time_ns != 0);
                let event = TraceEvent { stack, time_ns, ..TraceEvent::new(device, action) };
                self.writer.write(&Record::Event(event))?;
            }
        }
        let taken = Action::SnapshotTaken { reserved_bytes: reserved_before_bytes };
        self.writer.write(&Record::Event(TraceEvent::new(device, taken)))?;
        self.devices.insert(device, Progress { converter, next: start.next, missing: 0, interrupted: false });
        Ok(())
    }

    /// Appends a device's events.
    pub(crate) fn append(&mut self, device: u32, batch: &Batch) -> Result<(), WriteError> {
        let Some(progress) = self.devices.get_mut(&device) else { return Ok(()) };
        progress.missing += batch.lost_from(progress.next);
        progress.interrupted |= batch.interrupted;
        progress.say_what_is_missing(&mut self.writer, device)?;
        for event in batch.events_from(progress.next) {
            let Some(action) = progress.converter.action(event) else { continue };
            let stack = self.names.stack(&mut self.writer, event.site, self.stacks.as_deref())?;
            self.writer.write(&Record::Event(TraceEvent {
                device,
                time_ns: Some(event.time_ns),
                thread: Some(u64::from(event.thread_id)),
                stack,
                action,
            }))?;
        }
        Ok(())
    }

    /// Says that everything from before a moment is above, or said to be missing.
    pub(crate) fn mark(&mut self, time_ns: u64) -> Result<(), WriteError> {
        for (&device, progress) in &mut self.devices {
            progress.say_what_is_missing(&mut self.writer, device)?;
        }
        self.writer.write(&Record::Watermark { time_ns })
    }

    /// Leaves a device's events out; the trace will say so before the next ones.
    pub(crate) fn omit(&mut self, device: u32, batch: &Batch) -> u64 {
        let Some(progress) = self.devices.get_mut(&device) else { return 0 };
        let mut omitted = 0;
        for event in batch.events_from(progress.next) {
            // What regions and pressure there are is remembered for the events that follow.
            omitted += u64::from(progress.converter.action(event).is_some());
        }
        progress.missing += omitted + batch.lost_from(progress.next);
        progress.interrupted |= batch.interrupted;
        omitted
    }

    /// Writes what was appended.
    pub(crate) fn flush(&mut self) -> Result<(), WriteError> {
        self.writer.flush()
    }

    /// Ends the trace.
    pub(crate) fn finish(mut self) -> Result<W, WriteError> {
        for (&device, progress) in &mut self.devices {
            progress.say_what_is_missing(&mut self.writer, device)?;
        }
        self.writer.finish()
    }

    /// What it writes to.
    pub(crate) fn with_output<R>(&mut self, look: impl FnOnce(&mut W) -> R) -> R {
        look(self.writer.output_mut())
    }
}
