//! What the history of a process records, as a trace that others read while the program runs: in a file, and through a
//! socket to whoever connects to it.
//!
//! - [`Stream`] is the thread that does it: it drains the histories of the devices and hands the events to the sinks.
//! - `file` opens the file; [`directory`] is where the socket is, for the user alone.
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

#![forbid(unsafe_code)]

mod client;
mod connect;
mod convert;
pub mod directory;
mod file;
mod names;
mod sink;
mod source;
mod stream;

use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use flex::FlexAllocator;

pub use connect::{ConnectError, connect};
pub use file::path_of_process;
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
    /// A file to write, for the user alone; one of the user's that exists is overwritten.
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

/// Why a stream cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// Neither a file nor a socket was asked for.
    #[error("a stream needs a file or a socket; neither was given")]
    NoSink,
    /// Somebody else could read what is in the folder, or put something there.
    #[error("{path} is not safe for a socket: {reason}; expected a folder of this user with mode 0700")]
    UnsafeDirectory {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Another stream of this process is open.
    #[error("{path} is in use by another stream")]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// This process is a forked child: the devices are its parent's.
    #[error("a forked child cannot stream: the devices are its parent's")]
    Forked,
    /// A path that the system refuses.
    #[error("cannot open {path}: {source}")]
    Open {
        /// The file, folder or socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The system has no thread for it.
    #[error("cannot start the thread of the stream: {0}")]
    Thread(io::Error),
}
