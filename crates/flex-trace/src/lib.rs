//! Traces of device memory: what was allocated and freed, when and by whom, in a file that can be read while it is
//! written. The format is described in `docs/trace_format.md`.
//!
//! - [`Writer`] appends [`Record`]s, [`Reader`] gives them back, one at a time: neither keeps more than one frame.
//! - [`record`] says what a trace can tell; [`Tables`] keeps the names and stacks that records refer to.
//! - `wire`, `varint`: how values become bytes.
//!
//! ```
//! use flex_trace::{Action, Event, Header, Reader, Record, Writer};
//!
//! let mut writer = Writer::new(Vec::new(), Header::default())?;
//! let allocation = Action::Allocated { address: 0x1000.into(), size_bytes: 512, rounded_bytes: None, stream: 0 };
//! writer.write(&Record::Event(Event::new(0, allocation)))?;
//! let bytes = writer.finish()?;
//!
//! let mut reader = Reader::new(bytes.as_slice())?;
//! assert_eq!(reader.next()?, Some(Record::Event(Event::new(0, allocation))));
//! assert_eq!(reader.next()?, Some(Record::End { records: 1 }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Single-threaded; no lock.

#![forbid(unsafe_code)]

mod error;
mod reader;
pub mod record;
mod tables;
mod varint;
mod wire;
mod writer;

pub use error::{ReadError, WriteError};
pub use reader::{Progress, Reader};
pub use record::{Action, Address, Event, FrameId, Record, StackId, StringId};
pub use tables::Tables;
pub use wire::Ids;
pub use writer::Writer;

/// The first bytes of every trace. The bytes around the name show a transfer that took the file for text.
pub const MAGIC: [u8; 8] = *b"\x89FTRC\r\n\x1a";

/// The version that this crate writes. A reader takes every minor version of its major one. Version 1.1 has added
/// [`Record::Remark`] and [`Record::Watermark`].
pub const VERSION: Version = Version { major: 1, minor: 1 };

/// The most bytes in the payload of a frame. Writers end a frame long before; readers refuse longer ones unread.
pub const MAX_FRAME_BYTES: usize = 1 << 20;

/// Which form of the format a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Counts changes that old readers cannot follow.
    pub major: u16,
    /// Counts additions, which old readers skip.
    pub minor: u16,
}

/// What a file begins with: [`MAGIC`] and the version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    /// The version of the file.
    pub version: Version,
}

impl Default for Header {
    fn default() -> Self {
        Header { version: VERSION }
    }
}
