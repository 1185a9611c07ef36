//! The log of RMM's `logging_resource_adaptor`: a line for each event, `Thread,Time,Action,Pointer,Size,Stream`.
//!
//! Actions are `allocate`, `free` and `allocate failure`. The time is that of the day, `HH:MM:SS:microseconds` (later
//! versions have a point before the microseconds); days are counted on when it goes back. One device: RMM does not say
//! which.

use std::io::{BufRead, Write};

use flex_trace::record::ClockOrigin;
use flex_trace::{Action, Event, Writer};

use super::ImportError;
use super::lives::{self, Lives};

/// The first line.
pub(super) const HEADING: &[u8] = b"Thread,Time,Action,Pointer,Size,Stream";

/// The longest line, in bytes.
const MAX_LINE_BYTES: u64 = 4096;

const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;

/// Reads a log and writes it as a trace.
pub(super) fn import<R: BufRead, W: Write>(
    mut input: R,
    name: &str,
    writer: &mut Writer<W>,
) -> Result<(), ImportError> {
    lives::begin(writer, "RMM log", name, ClockOrigin::Monotonic)?;
    lives::device(writer, 0)?;
    let (mut lives, mut clock) = (Lives::default(), Clock::default());
    let (mut buffer, mut number) = (Vec::new(), 0);
    while read_line(&mut input, &mut buffer)? {
        number += 1;
        let wrong = |fault: String| ImportError::Line { line: number, fault };
        let line = std::str::from_utf8(&buffer).map_err(|_| wrong("expected a text".to_owned()))?.trim();
        if line.is_empty() || number == 1 {
            continue;
        }
        let entry = Entry::parse(line, &mut clock).map_err(wrong)?;
        entry.write(writer, &mut lives)?;
    }
    writer.write(&lives.history(0))?;
    Ok(())
}

/// The next line, of a bounded length; `false` at the end.
pub(super) fn read_line<R: BufRead>(input: &mut R, line: &mut Vec<u8>) -> std::io::Result<bool> {
    line.clear();
    std::io::Read::take(&mut *input, MAX_LINE_BYTES).read_until(b'\n', line)?;
    Ok(!line.is_empty())
}

struct Entry<'a> {
    thread: u64,
    time_ns: u64,
    action: &'a str,
    address: u64,
    size_bytes: u64,
    stream: u64,
}

impl<'a> Entry<'a> {
    fn parse(line: &'a str, clock: &mut Clock) -> Result<Entry<'a>, String> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let &[thread, time, action, pointer, size, stream] = fields.as_slice() else {
            return Err(format!("expected 6 fields, found {}: {line:.80}", fields.len()));
        };
        if !matches!(action, "allocate" | "allocate failure" | "free") {
            return Err(format!("expected allocate, allocate failure or free, found {action:.40}"));
        }
        let size = size.parse().map_err(|_| format!("expected a size in bytes, found {size:.40}"))?;
        Ok(Entry {
            thread: thread.parse().unwrap_or(0),
            time_ns: clock.read(time).ok_or_else(|| format!("expected a time of day, found {time:.40}"))?,
            action,
            address: hexadecimal(pointer)?,
            size_bytes: size,
            stream: hexadecimal(stream)?,
        })
    }

    fn write<W: Write>(&self, writer: &mut Writer<W>, lives: &mut Lives) -> Result<(), ImportError> {
        let &Entry { size_bytes, stream, .. } = self;
        let address = self.address.into();
        let event = |action| {
            let (time_ns, thread) = (Some(self.time_ns), Some(self.thread));
            Event { time_ns, thread, ..Event::new(0, action) }
        };
        match self.action {
            "allocate" => {
                let allocated = Action::Allocated { address, size_bytes, rounded_bytes: None, stream };
                lives.allocate(writer, event(allocated), self.address, size_bytes)?;
            }
            "free" => lives.free(writer, event(Action::Freed { address, size_bytes }), self.address)?,
            // `allocate failure`.
            _ => writer.write(&flex_trace::Record::Event(event(Action::OutOfMemory {
                requested_bytes: size_bytes,
                free_bytes: None,
                largest_free_bytes: None,
                capacity_bytes: None,
            })))?,
        }
        Ok(())
    }
}

/// An address: hexadecimal, with or without `0x`, or `(nil)`.
fn hexadecimal(text: &str) -> Result<u64, String> {
    if text == "(nil)" || text.is_empty() {
        return Ok(0);
    }
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
        .map_err(|_| format!("expected a hexadecimal address, found {text:.40}"))
}

/// Times of day as times since the beginning of the first day.
#[derive(Default)]
struct Clock {
    days: u64,
    last_ns: u64,
}

impl Clock {
    fn read(&mut self, text: &str) -> Option<u64> {
        let mut fields = text.split([':', '.']).map(|field| field.parse::<u64>().ok());
        let mut next = || fields.next().flatten();
        let (hours, minutes, seconds) = (next()?, next()?, next()?);
        let microseconds = next().unwrap_or(0);
        if hours > 23 || minutes > 59 || seconds > 60 || microseconds > 999_999 {
            return None;
        }
        let time_ns = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000_000 + microseconds * 1000;
        // Lines of several threads may be out of order by a little.
        if time_ns + DAY_NS / 2 < self.last_ns {
            self.days += 1;
        }
        self.last_ns = time_ns;
        Some(self.days * DAY_NS + time_ns)
    }
}
