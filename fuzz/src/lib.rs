//! What the fuzz targets do with an input, as functions that tests can call too.
//!
//! [`arena`] checks what the allocator hands out and counts, [`pressure`] what happens around a memory-pressure
//! callback. Both compare with the naive model of the property tests, which this crate takes from there. Every input of
//! theirs ends with nothing left. [`trace`] reads bytes that may be a trace, [`import`] bytes that may be any memory
//! file. An input that finds something makes a target panic.

pub mod arena;
pub mod import;
pub mod pressure;
pub mod trace;

#[path = "../../crates/flex/tests/common/driver.rs"]
mod driver;

/// The parts of it that need no proptest.
#[allow(dead_code, unreachable_pub)] // As where they come from.
#[path = "../../crates/flex/tests/common"]
mod common {
    pub(crate) mod model;
    pub(crate) mod op;
}
