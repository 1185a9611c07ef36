//! The memory-pressure contract: what happens between a failed search and the error.
//!
//! A request whose first search fails, after pending frees were drained, and that some state of the device could
//! serve, is one *pressure event*. It ends rescued or failed. The allocator hands its callback the locked guard
//! and the request; the callback may look, and must unlock to act. Progress is what the next search finds; a
//! callback's answer only says whether it is worth calling again.
//!
//! Accounting: `events == rescued + failed + events under way`, `coalesced <= rescued`.

pub mod collecting;
mod counters;
mod event;
mod report;
mod request;
pub(crate) mod waiters;

use std::sync::Arc;

pub use counters::{PressureCounters, PressureStatistics};
pub(crate) use event::{Aftermath, exhausted, out_of_memory};
pub use report::{Hints, ReclaimReport, SkipReason};
pub use request::{PressureCause, PressureRequest};

use crate::lock::AllocatorGuard;

/// What a callback thinks of calling it again. Either way the allocator searches once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// If the search fails, call again (at most [`MAX_ATTEMPTS`] times for one request).
    Retry,
    /// If the search fails, the request has failed.
    GiveUp,
}

/// How often one request calls a callback that always answers [`Verdict::Retry`].
pub const MAX_ATTEMPTS: u32 = 64;

/// What an allocator calls when its regions are exhausted.
///
/// Called on the requesting thread with the allocator mutex held. Closures of the same shape implement it.
///
/// A panic in a callback unwinds to the caller of `allocate`; the mutex is usable afterwards and nothing leaks.
pub trait MemoryPressureCallback: Send + Sync {
    /// Acts on one exhausted request; see [`AllocatorGuard::unlocked`].
    fn on_pressure(&self, guard: &mut AllocatorGuard<'_>, request: &mut PressureRequest) -> Verdict;
}

impl<F> MemoryPressureCallback for F
where
    F: Fn(&mut AllocatorGuard<'_>, &mut PressureRequest) -> Verdict + Send + Sync,
{
    fn on_pressure(&self, guard: &mut AllocatorGuard<'_>, request: &mut PressureRequest) -> Verdict {
        self(guard, request)
    }
}

/// A callback as the allocator's one slot holds it. A callback that is replaced while it runs lives until it returns.
pub type SharedCallback = Arc<dyn MemoryPressureCallback>;
