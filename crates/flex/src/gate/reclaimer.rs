//! What the gate needs of an interpreter. The core knows no interpreter; Python implements this trait, and so do
//! the tests.
//!
//! "Attached" means that the calling thread may run code of the interpreter (it holds the GIL, or has an attached
//! thread state on a free-threaded build). Every method that attaches, detaches, or runs code takes the proof that
//! the allocator mutex is free.

use std::time::{Duration, Instant};

use crate::lock::Unlocked;
use crate::pressure::collecting::Gaps;
use crate::pressure::{Hints, SkipReason};

/// A thread state of the interpreter; 0 is "none".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadToken(pub usize);

/// How the requesting thread entered the ladder.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// It was attached.
    pub attached: bool,
    /// Its thread state, attached or not.
    pub thread: ThreadToken,
    /// What the interpreter calls the thread.
    pub thread_ident: u64,
    /// It seems to be inside a foreign collection; see [`collecting::foreign`](crate::pressure::collecting::foreign).
    pub in_collection: Option<Gaps>,
    /// Why it cannot collect at all.
    pub unavailable: Option<SkipReason>,
}

/// Which generations to collect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// The young ones.
    Young,
    /// All.
    Full,
}

/// What one call of the collector did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collected {
    /// It really ran on this thread during the call. Otherwise another thread is collecting.
    pub ran: bool,
    /// The user interrupted it.
    pub interrupted: bool,
    /// Unreachable objects found.
    pub objects: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// A request that is about to fail, for which the interpreter is asked why.
#[derive(Debug, Clone, Copy)]
pub struct FailedRequest {
    /// What the interpreter calls the thread that asked for memory.
    pub thread_ident: u64,
    /// Which device of the process is exhausted: [`AllocatorOptions::ordinal`](crate::AllocatorOptions).
    pub device: u32,
    /// No full collection has run for it, and there is time to look for garbage.
    pub may_have_garbage: bool,
    /// Until when it waits for an answer. Who looks at objects refers to them, and keeps the collections of others from
    /// freeing them: nothing looks longer than that.
    pub deadline: Instant,
}

/// The interpreter whose collector a gate runs. One gate per interpreter.
pub trait Reclaimer: Send + Sync + 'static {
    /// Describes the calling thread. Neither blocks nor attaches.
    fn entry(&self) -> Entry;

    /// Runs one collection. The calling thread is attached.
    fn collect(&self, proof: &Unlocked<'_>, generation: Generation) -> Collected;

    /// Whether the program's automatic collector is enabled. The calling thread is attached.
    fn collector_enabled(&self, proof: &Unlocked<'_>) -> bool;

    /// Why memory may still be held, as far as the interpreter can tell. The calling thread is attached.
    fn hints(&self, proof: &Unlocked<'_>, failed: &FailedRequest) -> Hints;

    /// Runs `body` detached. The calling thread is attached before and after.
    fn detached(&self, proof: &Unlocked<'_>, body: &mut dyn FnMut());

    /// Runs `body` attached with the thread state `thread`, which is the calling thread's own. The calling thread
    /// is detached before and after. May wait for other threads to detach.
    fn attached(&self, proof: &Unlocked<'_>, thread: ThreadToken, body: &mut dyn FnMut());

    /// Makes a thread state for the calling thread, a new collector thread.
    fn new_thread(&self, proof: &Unlocked<'_>) -> ThreadToken;

    /// Whether no thread but those that `ignore` names could hold the interpreter against `requester`. The calling
    /// thread is attached.
    fn is_alone(&self, proof: &Unlocked<'_>, requester: &Entry, ignore: &dyn Fn(ThreadToken) -> bool)
    -> bool;

    /// Whether there are thread states but the calling thread's and those that `ignore` names. The calling thread
    /// is attached.
    fn has_other_threads(&self, proof: &Unlocked<'_>, ignore: &dyn Fn(ThreadToken) -> bool) -> bool;

    /// Whether the interpreter is shutting down. Needs no attachment.
    fn is_finalizing(&self) -> bool;

    /// Whether a young collection is much cheaper than a full one.
    fn young_is_cheap(&self) -> bool;

    /// How often the observer of collections was found removed so far. [`collect`](Self::collect) looks.
    fn gaps(&self) -> Gaps;

    /// A number that grows whenever a collection is seen to stop, on any thread. A hint.
    fn collections_stopped(&self) -> u64;

    /// Raises an interrupt of the user again that came in a hook or a collection: called when the request that it ran
    /// for leaves the ladder, on its thread, attached or not. By default nothing.
    fn raise_interrupt(&self) {}

    /// Keeps a thread that must not return into a dying interpreter: returns at `deadline`, or never.
    fn hold_at_exit(&self, entry: &Entry, deadline: Instant);

    /// Ends a forked child whose only thread is a collector thread.
    fn end_forked_child(&self) -> !;
}
