//! What importers of logs share: live blocks by address, and what such a log cannot be.

use std::collections::HashMap;

use flex_trace::record::{ClockOrigin, Device, History, Source};
use flex_trace::{Action, Event, Record, WriteError, Writer};
use foldhash::fast::RandomState;
use std::io::Write;

/// The records that a trace of a log begins with.
pub(super) fn begin<W: Write>(
    writer: &mut Writer<W>,
    kind: &str,
    name: &str,
    clock: ClockOrigin,
) -> Result<(), WriteError> {
    writer.write(&Record::Source(Source { producer: "flexmem", kind, name }))?;
    writer.write(&Record::Clock(clock))
}

/// A device that is told of for the first time.
pub(super) fn device<W: Write>(writer: &mut Writer<W>, device: u32) -> Result<(), WriteError> {
    writer.write(&Record::Device(Device { device, name: None, capacity_bytes: None }))
}

/// Live blocks of a log, by address, and the events that do not fit.
#[derive(Debug, Default)]
pub(super) struct Lives {
    live: HashMap<u64, u64, RandomState>,
    contradictions: u64,
    baseline_freed: u64,
}

impl Lives {
    /// An allocation. Frees what is still live there, which contradicts it.
    pub(super) fn allocate<W: Write>(
        &mut self,
        writer: &mut Writer<W>,
        event: Event,
        address: u64,
        size_bytes: u64,
    ) -> Result<(), WriteError> {
        if let Some(old_bytes) = self.live.insert(address, size_bytes) {
            self.contradictions += 1;
            let action = Action::Freed { address: address.into(), size_bytes: old_bytes };
            writer.write(&Record::Event(Event { action, ..event }))?;
        }
        writer.write(&Record::Event(event))
    }

    /// A free. What is freed unseen was allocated before the log began; logs do not tell how large it was.
    pub(super) fn free<W: Write>(
        &mut self,
        writer: &mut Writer<W>,
        event: Event,
        address: u64,
    ) -> Result<(), WriteError> {
        match self.live.remove(&address) {
            Some(size_bytes) => {
                let action = Action::Freed { address: address.into(), size_bytes };
                writer.write(&Record::Event(Event { action, ..event }))
            }
            None => {
                self.baseline_freed += 1;
                Ok(())
            }
        }
    }

    /// What is known of the device at the end.
    pub(super) fn history(&self, device: u32) -> Record<'static> {
        Record::History(History {
            device,
            recorded: true,
            reserved_before_bytes: None,
            contradictions: self.contradictions,
            baseline_freed: self.baseline_freed,
        })
    }
}
