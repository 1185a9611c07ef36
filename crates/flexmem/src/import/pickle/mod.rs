//! Pickles of plain data, taken apart while they are read.
//!
//! A pickle is a program: its opcodes may import any function and call it. This reader interprets only those that build
//! None, booleans, numbers, texts, bytes, lists, tuples, dicts and sets, of protocols 0 to 5, and refuses all others by
//! the name of what was asked for (`collections.OrderedDict`, made empty, is let through as a dict).
//!
//! It does not build the whole value. A [`Visitor`] sees each dict when it is filled and may replace it with something
//! small, and sees such things again when a list takes them, and may keep them itself. So a file of a gigabyte, which
//! is a list of millions of small dicts, is never in memory as such
//! ([design](../../../../../docs/decisions/0007-pickles.md)). What a pickle refers to in several places needs
//! [`Sharing`].
//!
//! - `machine` interprets the `opcodes`, `value` has the values, `heap` what values refer to, `memo` the numbers by
//!   which a pickle goes back to them.
//!
//! Bound: it takes at most 64 bytes of memory for each byte of the file, and 16 MiB. Only hostile pickles come near
//! that; a snapshot takes less than a quarter of its size.

mod heap;
mod machine;
mod memo;
mod opcodes;
mod value;

pub use heap::Sharing;
pub(super) use heap::{Heap, Text};
pub(super) use machine::{Place, Visitor, read};
pub(super) use value::{Object, Slot, Value};

/// Why a pickle could not be read.
#[derive(Debug, thiserror::Error)]
pub enum PickleError {
    /// At a place in the file.
    #[error("byte {offset}: {fault}")]
    At {
        /// How far it was read, in bytes.
        offset: u64,
        /// What is wrong there.
        fault: Fault,
    },
    /// The file could not be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// What is wrong with a pickle.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It ends too early.
    #[error("the pickle ends in the middle: the file was cut off, or is still being written")]
    Truncated,
    /// It asks for more than plain data.
    #[error("refused to load {0}; expected plain data only, as snapshots are")]
    Refused(String),
    /// An opcode that does not exist.
    #[error("{0:#04x} is no opcode of a pickle")]
    UnknownOpcode(u8),
    /// A protocol that is not known.
    #[error("protocol {0}; expected one from 0 to 5")]
    Protocol(u8),
    /// Opcodes that do not fit together.
    #[error("not a sound pickle: {0}")]
    Unsound(&'static str),
    /// Something stands in two places, of which only one can have it while it is not kept ([`Sharing`]).
    #[error("{0}: such a pickle is read a second time, so it must be a file and not a pipe")]
    Shared(&'static str),
    /// Values that are more than a snapshot has.
    #[error("the pickle keeps {0} values at once, more than it had bytes until there; no snapshot does")]
    TooMany(usize),
    /// What is in it is not a snapshot.
    #[error("{0}")]
    Contents(String),
}
