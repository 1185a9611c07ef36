//! The C ABI of FlexAllocator: what `include/flex.h` declares.
//!
//! | module | what it is |
//! |---|---|
//! | [`status`] | status codes, the last error of a thread, and the one place that catches panics |
//! | `handles` | tables that turn handles into what they name; a stale handle names nothing |
//! | [`allocator`] | making, sharing and releasing allocators; what is asked of a whole allocator |
//! | [`directive`] | where an allocation goes, as C says it |
//! | [`allocation`] | allocate, free, look at an allocation |
//! | [`pressure`] | the pressure callback and what it may do with its lock |
//! | `frame` | which lock the calling thread has been handed, so that no other pointer is ever followed |
//! | [`statistics`] | snapshots |
//! | [`devices`] | the devices of the process that this code is part of: the Python extension's |
//!
//! # Invariants
//!
//! - **Nothing unwinds out.** Every function runs under `guarded` in [`status`], which turns errors and panics into
//!   a status and a text. A foreign exception that arrives from a callback ends the process.
//! - **Handles are numbers, not pointers.** They carry a generation, so one that was freed is found out, also when
//!   its place is in use again. Only pointers to the caller's own variables are followed, and those are checked
//!   for null and alignment.
//! - **The tables' locks are innermost.** A thread that holds one calls nothing and waits for nothing, so they may be
//!   taken with the allocator mutex held.
//! - **With the allocator mutex held, nothing is destroyed.** What a callback releases before it unlocks is kept until
//!   the mutex is free, since dropping it may call a device or foreign code.
//! - **A forked child touches no lock.** Every function looks at the mark of a child first.

pub mod allocation;
pub mod allocator;
pub mod devices;
pub mod directive;
mod fork;
mod frame;
mod handles;
mod out;
pub mod pressure;
pub mod statistics;
pub mod status;

pub use allocation::*;
pub use allocator::*;
pub use devices::*;
pub use directive::*;
pub use pressure::*;
pub use statistics::*;
pub use status::*;
