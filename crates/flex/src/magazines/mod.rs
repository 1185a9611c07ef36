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

use std::sync::OnceLock;

use crate::arena::BlockHandle;
use crate::sync::atomic::{AtomicBool, Ordering};
use rack::{Class, RACKS, Rack};
use tally::Tally;

/// The small blocks that one thread keeps, of one allocator.
pub(crate) struct Magazine {
    /// Made when a block is first parked there.
    racks: [OnceLock<Box<Rack>>; RACKS],
    pub(crate) tally: Tally,
    /// Its thread has ended.
    orphaned: AtomicBool,
}

impl Magazine {
    pub(crate) fn new() -> Magazine {
        let magazine = Magazine {
            racks: [const { OnceLock::new() }; RACKS],
            tally: Tally::default(),
            orphaned: AtomicBool::new(false),
        };
        if cfg!(all(test, loom)) {
            magazine.racks[0].get_or_init(Box::default); // loom does not see what a `OnceLock` orders.
        }
        magazine
    }

    /// A parked block of a class. For the owner.
    #[inline]
    fn take(&self, class: Class) -> Option<BlockHandle> {
        let rack = self.racks[class.rack()].get()?;
        if !rack.holds(class) {
            return None;
        }
        rack.was_useful();
        rack.pop()
    }

    /// The rack where blocks of a class belong. For the owner.
    #[inline]
    fn rack_of(&self, class: Class) -> &Rack {
        self.racks[class.rack()].get_or_init(Box::default)
    }

    /// Adds parked blocks to `taken`, up to so many in all. For any thread; the owner may go on meanwhile.
    pub(crate) fn take_back(&self, taken: &mut Vec<BlockHandle>, most: usize) {
        self.racks.iter().filter_map(OnceLock::get).for_each(|rack| rack.take_back(taken, most));
    }

    fn orphan(&self) {
        self.orphaned.store(true, Ordering::Release);
    }

    /// Whether its thread has ended: nobody parks here any more.
    fn is_orphaned(&self) -> bool {
        self.orphaned.load(Ordering::Acquire)
    }
}

/// What came of parking a block.
pub(crate) enum Parking {
    Parked,
    /// The handle is stale.
    Stale,
    /// It cannot be parked, and is still live.
    Refused,
}
