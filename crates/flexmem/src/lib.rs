//! From a memory file to an answer: the library behind the command `flexmem`.
//!
//! - [`import`]: files of PyTorch, RMM, MiniMalloc as traces ([`flex_trace`]); [`trace_file`]: one that can be read
//!   again.
//! - [`info`]: the first questions that people have, answered.
//! - [`replay`]: a trace on FlexAllocator, and on a model of PyTorch's caching allocator.
//! - [`report`]: one page that shows a trace in a browser.
//! - [`watch`]: a running process, from the stream of its history.
//! - `site`: what places in a program are called; [`cli`]: the command.
//!
//! Single-threaded; no lock.

#![forbid(unsafe_code)]

pub mod cli;
pub mod import;
pub mod info;
pub mod replay;
pub mod report;
mod site;
pub mod trace_file;
pub mod watch;

pub use trace_file::TraceFile;
