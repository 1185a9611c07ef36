//! Files of other tools as traces.
//!
//! [`import`] looks at the beginning of a file, and hands it to who knows its kind. A file that none knows gets an
//! error that says what it is. Nothing in a file is ever run.
//!
//! - `kind`: what a file is, by its first bytes.
//! - `pickle`, `pytorch`: snapshots of PyTorch; `page`: those in a saved page of its viewer.
//! - `rmm`, `minimalloc`, `chrome`: logs of others.

mod bytes;
mod chrome;
mod kind;
mod lives;
mod minimalloc;
mod page;
mod pickle;
mod pytorch;
mod rmm;

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read, Write};

use flex_trace::record::Device;
use flex_trace::{Action, Event, Progress, ReadError, Reader, Record, WriteError, Writer};

pub use kind::Kind;
use kind::LOOK_BYTES;
pub use pickle::{Fault, PickleError, Sharing};

const BUFFER_BYTES: usize = 256 << 10;

/// Why a file could not be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file is of no kind that can be imported.
    #[error(
        "{0}; expected a snapshot of PyTorch (a pickle, or the viewer's saved page), a log of RMM, a table of \
         MiniMalloc, a trace of PyTorch's profiler, or a trace of flexmem"
    )]
    Unknown(&'static str),
    /// The pickle is broken, is not a snapshot, or asks for more than plain data.
    #[error(transparent)]
    Pickle(#[from] PickleError),
    /// A line of a text file is not what it should be.
    #[error("line {line}: {fault}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// What was expected, and found.
        fault: String,
    },
    /// A file of JSON is broken, or not what is needed.
    #[error("{0}")]
    Json(String),
    /// The trace is broken.
    #[error(transparent)]
    Trace(#[from] ReadError),
    /// The trace could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The file could not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ImportError {
    /// Whether the file would do with [`Sharing::Kept`].
    pub fn is_of_sharing(&self) -> bool {
        matches!(self, ImportError::Pickle(PickleError::At { fault: Fault::Shared(_), .. }))
    }
}

/// Reads a file of any kind and writes it as a trace, without ending that. `name` is what the trace says that it comes
/// from. Returns what the file was.
///
/// # Errors
///
/// [`ImportError`]. What was written until then is worth nothing.
pub fn import<R: Read, W: Write>(
    input: R,
    name: &str,
    writer: &mut Writer<W>,
    sharing: Sharing,
) -> Result<Kind, ImportError> {
    import_growing(input, name, writer, sharing, || false).map(|imported| imported.kind)
}

/// What there is to know of a file that was imported.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Imported {
    /// What it was.
    pub(crate) kind: Kind,
    /// It was still being written at its end: it is as far as it is, and nothing is missing.
    pub(crate) is_growing: bool,
    /// Records of kinds that are not known here, as newer traces may have. They are left out.
    pub(crate) unknown_records: u64,
}

/// As [`import`], of a file that may still be written: `is_written` says whether it is.
pub(crate) fn import_growing<R: Read, W: Write>(
    input: R,
    name: &str,
    writer: &mut Writer<W>,
    sharing: Sharing,
    is_written: impl Fn() -> bool,
) -> Result<Imported, ImportError> {
    let (kind, input) = look(input)?;
    let mut imported = Imported { kind, is_growing: false, unknown_records: 0 };
    match kind {
        Kind::Pickle => pytorch::import(input, name, writer, sharing)?,
        Kind::Page => pytorch::import(page::pickle(input)?, name, writer, sharing)?,
        Kind::Rmm => rmm::import(input, name, writer)?,
        Kind::MiniMalloc => minimalloc::import(input, name, writer)?,
        Kind::Json => chrome::import(input, name, writer)?,
        Kind::Trace => copy(input, writer, is_written, &mut imported)?,
        Kind::Other(what) => return Err(ImportError::Unknown(what)),
    }
    Ok(imported)
}

/// What a file is, and the whole of it. A pipe may give it in pieces, of which the first may be too short to judge.
fn look<R: Read>(mut input: R) -> io::Result<(Kind, impl BufRead)> {
    // Room for all of it, so that a file gives it in one piece.
    let mut beginning = Vec::with_capacity(LOOK_BYTES as usize);
    input.by_ref().take(LOOK_BYTES).read_to_end(&mut beginning)?;
    let kind = Kind::of(&beginning);
    let rest = BufReader::with_capacity(BUFFER_BYTES, input);
    Ok((kind, io::Cursor::new(beginning).chain(rest)))
}

/// A trace, checked record by record. One that was not finished and does not grow, since its writer was killed, has
/// events missing at its end.
fn copy<R: Read, W: Write>(
    input: R,
    writer: &mut Writer<W>,
    is_written: impl Fn() -> bool,
    imported: &mut Imported,
) -> Result<(), ImportError> {
    let mut reader = Reader::new(input)?;
    let mut devices = BTreeSet::new();
    let unknown = &mut imported.unknown_records;
    if copy_records(&mut reader, writer, &mut devices, unknown)? == Progress::Finished {
        return Ok(());
    }
    imported.is_growing = is_written();
    // If not, its writer may have finished it just before that was asked.
    if !imported.is_growing && copy_records(&mut reader, writer, &mut devices, unknown)? != Progress::Finished
    {
        // Of a file that tells of no device, the first one's may be missing.
        if devices.is_empty() {
            devices.insert(0);
        }
        for device in devices {
            writer.write(&Record::Event(Event::new(device, Action::Lost { events: 0 })))?;
        }
    }
    Ok(())
}

/// What is there of a trace, but its end and what is not known here, and how far that is.
fn copy_records<R: Read, W: Write>(
    reader: &mut Reader<R>,
    writer: &mut Writer<W>,
    devices: &mut BTreeSet<u32>,
    unknown_records: &mut u64,
) -> Result<Progress, ImportError> {
    while let Some(record) = reader.next()? {
        match record {
            Record::End { .. } => continue,
            // Without its body it would be broken for those who know it.
            Record::Unknown { .. } => {
                *unknown_records += 1;
                continue;
            }
            Record::Device(Device { device, .. }) | Record::Event(Event { device, .. }) => {
                devices.insert(device);
            }
            _ => {}
        }
        writer.write(&record)?;
    }
    Ok(reader.progress())
}
