//! What the history of a process records, as a trace that others read while the program runs: in a file, and through a
//! socket to whoever connects to it.
//!
//! - [`Stream`] is one that runs, and [`Starting`] one that is about to; `worker` is its thread, which drains the
//!   histories of the devices and hands the events to the sinks.
//! - `file` opens the file, `socket` listens; [`directory`] is where the socket is, for the user alone. `error` says
//!   what is wrong with them.
//! - [`connect()`] is for readers.
//! - `sink`: a trace that begins with the blocks that are live, and goes on with events; `client` is one on a socket,
//!   `names` what it has defined.
//! - `convert`: events of `flex` as records of `flex_trace`.
//!
//! Nothing here is reached by an allocation or a free: the ring of a history never waits for its reader. What the ring
//! has overwritten before it was drained, and what a slow client has no room for, is counted, and the trace says so
//! ([`flex_trace::Action::Lost`]).
//!
//! Lock: one, `Control`'s, a leaf, between the thread and whoever stops it.

// A test installs a signal handler.
#![cfg_attr(not(test), forbid(unsafe_code))]

mod client;
mod connect;
mod convert;
pub mod directory;
mod error;
mod file;
mod names;
mod sink;
mod socket;
mod source;
mod starting;
mod stream;
mod worker;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use flex::FlexAllocator;

pub use connect::{ConnectError, connect};
pub use error::{StreamError, SystemError};
pub use file::{is_being_written, path_of_process};
pub use starting::Starting;
pub use stream::Stream;

/// One line of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackFrame {
    /// The file.
    pub filename: Arc<str>,
    /// The function.
    pub function: Arc<str>,
    /// The line; 0 if that is not known.
    pub line: u32,
}

/// Resolves the sites of a history, on the stream's thread.
pub trait Stacks: Send + Sync {
    /// The frames of a site, innermost first; none if it is not known. Must not wait for a thread that allocates.
    fn frames(&self, site: u32) -> Vec<StackFrame>;
}

/// What a stream is made of.
#[derive(Clone)]
pub struct StreamOptions {
    /// The devices whose histories are drained.
    pub devices: Vec<FlexAllocator>,
    /// Who resolves sites; without one, events have no stacks.
    pub stacks: Option<Arc<dyn Stacks>>,
    /// A file to write, for the user alone; one of the user's that exists is overwritten. A relative path begins at the
    /// working directory of that moment.
    pub file: Option<PathBuf>,
    /// The folder of the socket, made if it is not there; the socket is called after the process. See
    /// [`directory::default_directory`].
    pub socket_directory: Option<PathBuf>,
    /// Who records: the producer that the trace names.
    pub producer: String,
    /// Bytes that wait for a client before events are left out. What it begins with may be more.
    pub client_room_bytes: usize,
}

impl StreamOptions {
    /// A stream of these devices, without a sink yet.
    pub fn new(devices: Vec<FlexAllocator>) -> Self {
        StreamOptions {
            devices,
            stacks: None,
            file: None,
            socket_directory: None,
            producer: concat!("flex-stream ", env!("CARGO_PKG_VERSION")).to_owned(),
            client_room_bytes: 8 << 20,
        }
    }
}

impl fmt::Debug for StreamOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("StreamOptions")
            .field("file", &self.file)
            .field("socket_directory", &self.socket_directory)
            .finish_non_exhaustive()
    }
}

/// What a stream has done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamStatistics {
    /// Events that were drained.
    pub events: u64,
    /// Events that the histories had overwritten before they were drained.
    pub lost: u64,
    /// Events that clients had no room for, all clients together, and those after the file had failed.
    pub dropped: u64,
    /// Clients that are connected.
    pub clients: u64,
    /// Why the file is written no more, for example because the disk is full.
    pub file_error: Option<String>,
}
