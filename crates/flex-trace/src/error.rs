//! What can be wrong with a trace. Each error of a reader has the place in the file.

use std::io;

use crate::{MAGIC, MAX_FRAME_BYTES, VERSION};

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file does not begin as a trace does.
    #[error("not a trace: expected the bytes {MAGIC:02x?} at the beginning, found {found:02x?}")]
    NotATrace {
        /// The first bytes, at most eight.
        found: Vec<u8>,
    },
    /// The file is of a version that this reader does not know.
    #[error("the trace has version {major}.{minor}; expected a version {}.x{}", VERSION.major, advice(*major))]
    Version {
        /// The file's.
        major: u16,
        /// The file's.
        minor: u16,
    },
    /// A frame claims more than a frame may have.
    #[error("byte {offset}: the frame claims {claimed_bytes} bytes; expected at most {MAX_FRAME_BYTES}")]
    FrameTooLong {
        /// Where the frame begins.
        offset: u64,
        /// What it claims.
        claimed_bytes: u32,
    },
    /// The checksum of a frame is not that of its bytes.
    #[error(
        "byte {offset}: the frame's checksum is {found:08x}; expected {expected:08x}, so the file is damaged"
    )]
    Checksum {
        /// Where the frame begins.
        offset: u64,
        /// What the bytes give.
        expected: u32,
        /// What is written.
        found: u32,
    },
    /// The bytes of a frame do not make a record.
    #[error("byte {offset}: in the frame that begins here: {fault}")]
    Malformed {
        /// Where the frame begins.
        offset: u64,
        /// What is wrong.
        fault: Malformed,
    },
    /// The file could not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What helps against a version.
fn advice(major: u16) -> &'static str {
    if major > VERSION.major { ": a newer program wrote it, and a newer one has to read it" } else { "" }
}

/// Why bytes do not make a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// A value ends behind the record.
    #[error("a record ends in the middle of a value")]
    Short,
    /// A number of more than 64 bits, or above what its field holds.
    #[error("a number is too large for its field")]
    NumberTooLarge,
    /// A tag that no variant has.
    #[error("the value {0} stands where none of that number is known")]
    UnknownVariant(u64),
    /// A text that is not UTF-8.
    #[error("a text is not UTF-8")]
    NotUtf8,
}

/// Why a record could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The record does not fit in a frame. Nothing of it was written.
    #[error("a record of {record_bytes} bytes does not fit in a frame; expected at most {MAX_FRAME_BYTES}")]
    RecordTooLong {
        /// The record, encoded.
        record_bytes: usize,
    },
    /// The output failed. What was written before it may be incomplete.
    #[error(transparent)]
    Io(#[from] io::Error),
}
