//! The pressure statistics of one device, as atomics: whoever runs a collection counts it, on whatever thread,
//! also after the request that asked for it has given up waiting.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::collecting::{self, CollectionKind};
use super::report::SkipReason;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Live counters of one allocator; read them with [`snapshot`](Self::snapshot).
        #[derive(Debug, Default)]
        pub struct PressureCounters {
            $(pub(crate) $name: AtomicU64,)*
            pub(crate) skipped: [AtomicU64; SkipReason::ALL.len()],
            /// How often the counters were reset.
            resets: AtomicU64,
            /// As `reclaimed_bytes`, since the start.
            reclaimed_ever: AtomicU64,
            /// As `collection_freed_bytes`, since the start.
            freed_ever: AtomicU64,
        }

        /// Pressure statistics of one device since its start or the last reset. Times in nanoseconds.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct PressureStatistics {
            $($(#[$doc])* pub $name: u64,)*
            /// Requests for which no collection ran, by [`SkipReason::ALL`].
            pub skipped: [u64; SkipReason::ALL.len()],
        }

        impl PressureCounters {
            /// The counters now. Exact when no request is under way.
            pub fn snapshot(&self) -> PressureStatistics {
                PressureStatistics {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    skipped: std::array::from_fn(|reason| self.skipped[reason].load(Ordering::Relaxed)),
                }
            }

            /// Sets every counter to 0. What the ladder measures progress by goes on.
            pub fn reset(&self) {
                self.resets.fetch_add(1, Ordering::SeqCst);
                $(self.$name.store(0, Ordering::Relaxed);)*
                for skipped in &self.skipped {
                    skipped.store(0, Ordering::Relaxed);
                }
            }
        }
    };
}

counters! {
    /// Requests whose first search failed although some state of the device could serve them.
    events,
    /// Events that ended with memory.
    rescued,
    /// Events that ended without.
    failed,
    /// Rescued events that ran no collection of their own.
    coalesced,
    /// Young collections that ran for a request of this device.
    young_collections,
    /// Full collections that ran for a request of this device.
    full_collections,
    /// Bytes of this device freed by the gate's collections, on the threads that ran them.
    reclaimed_bytes,
    /// Bytes of this device freed inside any collection, the program's own included.
    collection_freed_bytes,
    /// Time spent in the collections counted here.
    collection_time_ns,
    /// The longest of them.
    collection_max_ns,
    /// Collections that outlived the deadline of the request they ran for.
    collectors_abandoned,
    /// Calls of user hooks for requests of this device.
    hooks_run,
    /// Those that failed.
    hooks_failed,
    /// The longest that one request was under pressure, from its failed search to its end.
    request_max_ns,
    /// The most collections that one request ran by itself.
    request_max_collections,
}

impl PressureCounters {
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    /// How often the counters were reset so far: an event that ends after one counts as begun after it too.
    pub(crate) fn resets(&self) -> u64 {
        self.resets.load(Ordering::SeqCst)
    }

    pub(crate) fn count_skip(&self, reason: SkipReason) {
        let index = SkipReason::ALL.iter().position(|known| *known == reason).unwrap_or_default();
        Self::add(&self.skipped[index], 1);
    }

    /// Counts a collection that ran.
    pub(crate) fn count_collection(&self, full: bool, elapsed: Duration) {
        let nanoseconds = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        Self::add(if full { &self.full_collections } else { &self.young_collections }, 1);
        Self::add(&self.collection_time_ns, nanoseconds);
        self.collection_max_ns.fetch_max(nanoseconds, Ordering::Relaxed);
    }

    /// Counts the end of a request that was under pressure.
    pub(crate) fn count_request(&self, elapsed: Duration, own_collections: u32) {
        let nanoseconds = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.request_max_ns.fetch_max(nanoseconds, Ordering::Relaxed);
        self.request_max_collections.fetch_max(own_collections.into(), Ordering::Relaxed);
    }

    /// Counts bytes whose free began inside the collection that runs on this thread.
    pub(crate) fn count_freed(&self, bytes: u64) {
        Self::add(&self.collection_freed_bytes, bytes);
        self.freed_ever.fetch_add(bytes, Ordering::SeqCst);
        if collecting::kind() == Some(CollectionKind::Gate) {
            Self::add(&self.reclaimed_bytes, bytes);
            self.reclaimed_ever.fetch_add(bytes, Ordering::SeqCst);
        }
    }

    /// Bytes freed by the gate's collections since the start.
    pub(crate) fn reclaimed(&self) -> u64 {
        self.reclaimed_ever.load(Ordering::SeqCst)
    }

    /// Bytes freed inside any collection since the start.
    pub(crate) fn collection_freed(&self) -> u64 {
        self.freed_ever.load(Ordering::SeqCst)
    }
}
