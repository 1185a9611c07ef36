//! Magazines: small free blocks that a thread keeps for its own next requests, so that most pairs of an allocation and
//! a free take no lock.
//!
//! [`Magazine`] is one thread's of one allocator: [`rack`]s of blocks of one size, and [`tally`] of what went through
//! them, for the statistics. [`thread`] finds the calling thread's magazine and empties it when the thread ends;
//! [`parking`] is how the allocator uses them, [`settling`] how its counters follow.
//!
//! To the arena a parked block is occupied; to everybody else it is free. Whoever looks at the allocator as a whole,
//! and whoever finds it exhausted, first takes back what all magazines hold: a swap for each block, whatever its owner
//! is doing. Frees of a thread that did not allocate the block end up in its own magazine, and go back in batches.
//!
//! Invariants:
//! - a parked block is claimed (see [`crate::pending`]), so no handle frees it a second time;
//! - only the owner fills slots, and only empty ones; everybody may empty them;
//! - while a request is under pressure or a limit is set, parking is suspended, and no block is parked: see
//!   [`parking::Suspension`].

pub(crate) mod parking;
pub(crate) mod rack;
pub(crate) mod settling;
pub(crate) mod tally;
pub(crate) mod thread;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::arena::BlockHandle;
use crate::shared::InFlight;
use crate::sync::atomic::{AtomicBool, Ordering};
use rack::{Class, RACKS, Rack};
use tally::Tally;

/// The small blocks that one thread keeps, of one allocator.
pub(crate) struct Magazine {
    racks: [Rack; RACKS],
    pub(crate) tally: Tally,
    /// Its thread has ended.
    orphaned: AtomicBool,
}

impl Magazine {
    pub(crate) fn new() -> Magazine {
        Magazine {
            racks: std::array::from_fn(|_| Rack::new()),
            tally: Tally::default(),
            orphaned: AtomicBool::new(false),
        }
    }

    /// A parked block of a class. For the owner.
    #[inline]
    fn take(&self, class: Class) -> Option<BlockHandle> {
        let rack = self.rack_of(class);
        if !rack.holds(class) {
            return None;
        }
        rack.was_useful();
        rack.pop()
    }

    /// The rack where blocks of a class belong. For the owner.
    #[inline]
    fn rack_of(&self, class: Class) -> &Rack {
        &self.racks[class.rack()]
    }

    /// Adds parked blocks to `taken`, up to so many in all. For any thread; the owner may go on meanwhile.
    pub(crate) fn take_back(&self, taken: &mut Vec<BlockHandle>, most: usize) {
        self.racks.iter().for_each(|rack| rack.take_back(taken, most));
    }

    fn orphan(&self) {
        self.orphaned.store(true, Ordering::Release);
    }

    /// Whether its thread has ended: nobody parks here any more.
    fn is_orphaned(&self) -> bool {
        self.orphaned.load(Ordering::Acquire)
    }
}

/// Parked blocks that were taken out of their rack, to be given back. Until that is done they count as frees in flight:
/// a request in need waits for them.
pub(crate) struct Displaced<'a> {
    pub(crate) blocks: Vec<BlockHandle>,
    _in_flight: InFlight<'a>,
}

/// What came of parking a block.
pub(crate) enum Parking<'a> {
    /// It is parked; these, parked before, are to be given back.
    Parked(Option<Displaced<'a>>),
    /// The handle is stale.
    Stale,
    /// It cannot be parked, and is still live.
    Refused,
}
