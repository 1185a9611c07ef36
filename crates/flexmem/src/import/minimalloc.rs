//! MiniMalloc's tables of buffers: `id,lower,upper,size`, a life from `lower` up to before `upper`. The columns may
//! come in another order; `start` and `end` are other names of the times, and `end` is inclusive. More columns are
//! passed over.
//!
//! Played as it would happen: at each time the frees first, then the allocations. A table has no addresses; each buffer
//! gets one of its own.

use std::io::{self, BufRead, Write};

use flex_trace::record::{ClockOrigin, History};
use flex_trace::{Action, Event, Record, Writer};

use super::ImportError;
use super::lives;
use super::rmm::read_line;

/// Whether a text begins with the names of the columns.
pub(super) fn is_heading(text: &[u8]) -> bool {
    let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
    std::str::from_utf8(line).is_ok_and(|line| Columns::parse(line).is_some())
}

/// A buffer.
struct Buffer {
    lower: u64,
    upper: u64,
    size_bytes: u64,
}

/// Where the columns are.
struct Columns {
    lower: usize,
    upper: usize,
    /// Whether the buffer is still live at `upper`.
    inclusive: bool,
    size: usize,
}

impl Columns {
    fn parse(line: &str) -> Option<Columns> {
        let names: Vec<&str> = line.trim().split(',').map(str::trim).collect();
        let position = |name: &str| names.iter().position(|&found| found == name);
        let inclusive = position("upper").is_none();
        Some(Columns {
            lower: position("lower").or(position("start"))?,
            upper: position("upper").or(position("end"))?,
            inclusive,
            size: position("size")?,
        })
    }

    fn buffer(&self, line: &str) -> Result<Buffer, String> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let number = |column: usize| {
            let field = fields.get(column).copied().unwrap_or_default();
            field.parse::<u64>().map_err(|_| format!("expected a number, found {field:?} in: {line:.80}"))
        };
        let (lower, upper, size_bytes) = (number(self.lower)?, number(self.upper)?, number(self.size)?);
        let upper = upper.saturating_add(self.inclusive.into());
        if lower >= upper {
            return Err(format!("expected a life, found one from {lower} to before {upper}"));
        }
        Ok(Buffer { lower, upper, size_bytes })
    }
}

/// Reads a table and writes it as a trace.
pub(super) fn import<R: BufRead, W: Write>(
    mut input: R,
    name: &str,
    writer: &mut Writer<W>,
) -> Result<(), ImportError> {
    lives::begin(writer, "MiniMalloc table", name, ClockOrigin::Steps)?;
    lives::device(writer, 0)?;
    let (recorded, device) = (true, 0);
    let history =
        History { device, recorded, reserved_before_bytes: None, contradictions: 0, baseline_freed: 0 };
    writer.write(&Record::History(history))?;
    play(&read(&mut input)?, writer)
}

fn read<R: BufRead>(input: &mut R) -> Result<Vec<Buffer>, ImportError> {
    let (mut buffers, mut columns, mut buffer, mut line_number) = (Vec::new(), None, Vec::new(), 0);
    while read_line(input, &mut buffer)? {
        line_number += 1;
        let wrong = |fault: String| ImportError::Line { line: line_number, fault };
        let line = std::str::from_utf8(&buffer).map_err(|_| wrong("expected a text".to_owned()))?;
        let line = line.trim_start_matches('\u{feff}').trim();
        match &columns {
            None => columns = Columns::parse(line),
            Some(columns) if !line.is_empty() => buffers.push(columns.buffer(line).map_err(wrong)?),
            Some(_) => {}
        }
    }
    Ok(buffers)
}

fn too_large() -> ImportError {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the sizes of this table of MiniMalloc are 2^64 bytes and more in all; expected less",
    )
    .into()
}

fn play<W: Write>(buffers: &[Buffer], writer: &mut Writer<W>) -> Result<(), ImportError> {
    let frees = buffers.iter().enumerate().map(|(buffer, life)| (life.upper, false, buffer));
    let allocations = buffers.iter().enumerate().map(|(buffer, life)| (life.lower, true, buffer));
    let mut events: Vec<_> = frees.chain(allocations).collect();
    events.sort_unstable();
    let mut addresses = Vec::with_capacity(buffers.len());
    let mut end = 0_u64;
    for buffer in buffers {
        addresses.push(end);
        // One of nothing has an address of its own too.
        end = end.checked_add(buffer.size_bytes.max(1)).ok_or_else(too_large)?;
    }
    for (time, is_allocation, buffer) in events {
        let (address, size_bytes) = (addresses[buffer].into(), buffers[buffer].size_bytes);
        let action = if is_allocation {
            Action::Allocated { address, size_bytes, rounded_bytes: None, stream: 0 }
        } else {
            Action::Freed { address, size_bytes }
        };
        writer.write(&Record::Event(Event { time_ns: Some(time), ..Event::new(0, action) }))?;
    }
    Ok(())
}
