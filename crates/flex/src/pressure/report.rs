//! What the reclaim ladder did for one request: the part of an out-of-memory error that says what was tried.
//!
//! Plain data, no lock. The ladder fills it in while the allocator mutex is free; the allocator attaches it
//! to the error together with the figures of the last failed search.

use std::sync::Arc;
use std::time::Duration;

/// Why a request could not run a collection.
///
/// The order is the order of the `collections.skipped.*` statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SkipReason {
    /// The policy is `off`.
    Policy,
    /// The policy is `respect_disable` and the program has disabled its collector.
    Disabled,
    /// The thread is already inside a collection, the ladder or a hook.
    Reentrant,
    /// The interpreter is shutting down.
    Finalizing,
    /// The process is a forked child.
    Forked,
    /// The deadline of the request passed before a collection could run.
    Timeout,
    /// The interpreter is not initialised, or the reclaimer is not set up yet or has failed.
    Uninitialized,
    /// The thread belongs to another interpreter than the gate's.
    Interpreter,
}

impl SkipReason {
    /// Every reason, in the order of the statistics.
    pub const ALL: [SkipReason; 8] = [
        SkipReason::Policy,
        SkipReason::Disabled,
        SkipReason::Reentrant,
        SkipReason::Finalizing,
        SkipReason::Forked,
        SkipReason::Timeout,
        SkipReason::Uninitialized,
        SkipReason::Interpreter,
    ];

    /// The name under which the reason is counted in `collections.skipped.*`.
    pub fn name(self) -> &'static str {
        match self {
            SkipReason::Policy => "policy",
            SkipReason::Disabled => "disabled",
            SkipReason::Reentrant => "reentrant",
            SkipReason::Finalizing => "finalizing",
            SkipReason::Forked => "forked",
            SkipReason::Timeout => "timeout",
            SkipReason::Uninitialized => "uninitialized",
            SkipReason::Interpreter => "interpreter",
        }
    }
}

/// Facts about the interpreter that explain why memory may still be held.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hints {
    /// Objects are frozen (`gc.freeze`), so their cycles are never collected, and what those hold is not known.
    pub frozen_objects: bool,
    /// A live traceback or exception may hold tensors; how much is not known.
    pub live_traceback: bool,
    /// What only frozen garbage holds, in words: a sentence.
    pub frozen: Option<Arc<str>>,
    /// What only live tracebacks hold, in words: a sentence.
    pub traceback: Option<Arc<str>>,
    /// What only dead cycles hold, in words: a sentence about a device that no collection has cleared.
    pub dead_cycles: Option<Arc<str>>,
}

/// What was tried for a request before it was given up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReclaimReport {
    /// Young collections that ran for this request.
    pub young_collections: u32,
    /// Full collections that ran for this request, its own and those it shared.
    pub full_collections: u32,
    /// Bytes of this device that those collections freed.
    pub reclaimed_bytes: u64,
    /// Time spent in those collections.
    pub collection_time: Duration,
    /// Why no collection ran, when none did.
    pub skipped: Option<SkipReason>,
    /// The deadline of the request passed while it waited or collected.
    pub timed_out: bool,
    /// The deadline of the request passed while it ran user hooks.
    pub hooks_timed_out: bool,
    /// What the interpreter had to say.
    pub hints: Hints,
}
