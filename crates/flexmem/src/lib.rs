//! From a memory file to an answer.
//!
//! - [`report`]: one page that shows a trace in a browser.
//!
//! Single-threaded; no lock.

#![forbid(unsafe_code)]

pub mod report;
