//! What a history is asked to keep, who tells it where things happen, and what it gives back. Plain values; no lock.

use std::fmt;
use std::sync::Arc;

use super::event::{Event, EventKinds};

/// The most events that a history keeps: 64 bytes each, 256 MiB in all, taken from the system as they are needed.
pub const MAX_ENTRIES: u32 = 1 << 22;

/// Tells places in the program apart.
///
/// Called by threads that allocate and free, inside collections too, with no allocator mutex held. It must neither wait
/// nor panic, and use no allocator of a device.
pub trait Sites: Send + Sync {
    /// A number for where the calling thread is now; 0 if that is not known. Equal places have equal numbers.
    fn current(&self) -> u32;
}

/// Which events are given a site. Live blocks have theirs in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SiteScope {
    /// None.
    LiveBlocks,
    /// Allocations, and what happens for the sake of one: regions acquired, pressure, out of memory.
    Allocations,
    /// Frees too.
    #[default]
    All,
}

/// What a history keeps.
#[derive(Clone, Default)]
pub struct HistoryOptions {
    /// How many of the newest events; at most [`MAX_ENTRIES`], and 0 for notes on live blocks alone.
    pub max_entries: usize,
    /// Who tells places apart; without one all sites are 0.
    pub sites: Option<Arc<dyn Sites>>,
    /// Which events are given a site.
    pub scope: SiteScope,
    /// Events that are not recorded.
    pub without: EventKinds,
    /// Forget what was recorded before.
    pub clear: bool,
}

impl fmt::Debug for HistoryOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HistoryOptions")
            .field("max_entries", &self.max_entries)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

/// Events that were read.
#[derive(Debug, Clone, Default)]
pub struct RecordedEvents {
    /// Those that were still there, oldest first.
    pub events: Vec<Event>,
    /// How many were not: overwritten by newer ones, being written, given up because a slot was busy, or written by a
    /// thread that did not know yet that the number of entries had changed.
    pub lost: u64,
    /// The number of the first event that was not looked at.
    pub next: u64,
    /// How many events threads have written into rings that were left, since events were last forgotten. They have no
    /// numbers, and are part of `lost` for who reads from the beginning.
    pub late: u64,
    /// How often recording has begun. What happened between two recordings is in none.
    pub recordings: u64,
    /// The number of the first event of the latest recording.
    pub began: u64,
}
