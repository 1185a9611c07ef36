//! The memory-pressure contract: what happens between a failed search and the error.

mod report;

pub use report::{Hints, ReclaimReport, SkipReason};
