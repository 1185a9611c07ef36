//! From a memory file to an answer: the library behind the command `flexmem`.
//!
//! - [`import`]: files of PyTorch, RMM, MiniMalloc as traces ([`flex_trace`]).
//!
//! Single-threaded; no lock.

#![forbid(unsafe_code)]

pub mod import;
