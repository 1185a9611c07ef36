//! One rack of a magazine: a stack of parked blocks of one class.
//!
//! The owner pushes and pops at the top; others empty slots wherever they find a block. A slot is emptied by a swap, so
//! that a block goes to one thread. Only the owner writes `class`, `limit`, `top` and `refusals`; they are atomics
//! because the rack is shared. Slots are made when they are first used, as many as there are already. No lock.

use std::sync::OnceLock;

use crate::arena::BlockHandle;
use crate::directive::Lane;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::units::ALIGNMENT_BYTES;

/// Racks of a magazine: with one domain, one for each size.
pub(crate) const RACKS: usize = if cfg!(all(test, any(loom, shuttle))) { 1 } else { LARGEST_UNITS as usize };
/// Slots of a rack that are made first.
const FIRST_SLOTS: usize = if cfg!(all(test, any(loom, shuttle))) { 2 } else { 8 };
/// How often slots are made: each time but the first their number doubles.
const TIERS: usize = if cfg!(all(test, any(loom, shuttle))) { 1 } else { 10 };
/// The most blocks of a rack.
const SLOTS: usize = FIRST_SLOTS << (TIERS - 1);
/// The fewest that a rack is limited to.
pub(crate) const FEWEST: u64 = 2;
/// A rack refuses so many blocks of other classes before it gives way.
pub(crate) const PATIENCE: u32 = 8;
/// Blocks that are given back together when a rack is full, at most.
pub(crate) const BATCH: u32 = 32;
/// Blocks up to this size are small: 64 KiB.
pub(crate) const LARGEST_UNITS: u32 = (64 << 10) / ALIGNMENT_BYTES as u32;

/// What the blocks of a rack have in common: the lane and the size. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Class(u64);

impl Class {
    /// The class of small tensor blocks.
    #[inline]
    pub(crate) fn new(lane: Lane, size_units: u32) -> Option<Class> {
        // 0 units wrap to the largest number.
        (size_units.wrapping_sub(1) < LARGEST_UNITS && lane.is_of_tensors())
            .then(|| Class((lane.index() as u64) << 32 | u64::from(size_units)))
    }

    /// The class of blocks of a lane that serve a request.
    #[inline]
    pub(crate) fn wanted(bytes: u64, lane: Lane) -> Option<Class> {
        Class::new(lane, u32::try_from(bytes.div_ceil(ALIGNMENT_BYTES)).ok()?)
    }

    /// Size of its blocks.
    #[inline]
    pub(crate) fn size_bytes(self) -> u64 {
        u64::from(self.0 as u32) * ALIGNMENT_BYTES
    }

    /// Which rack of a magazine is for it.
    #[inline]
    pub(crate) fn rack(self) -> usize {
        // The sizes of a second domain begin elsewhere, so that equal sizes do not meet.
        let (lane, size_units) = ((self.0 >> 32) as usize, self.0 as u32 as usize);
        (size_units - 1 + lane * (RACKS / 4 + 1)) % RACKS
    }
}

/// A stack of parked blocks of one class.
pub(crate) struct Rack {
    /// 0 before the first.
    class: AtomicU64,
    /// How many slots are used, at most.
    limit: AtomicU32,
    /// Slots from here on are empty.
    top: AtomicU32,
    /// How many blocks of other classes were refused since one of its own class was taken.
    refusals: AtomicU32,
    /// Handles as numbers; 0 is empty.
    tiers: [OnceLock<Box<[AtomicU64]>>; TIERS],
}

impl Default for Rack {
    fn default() -> Rack {
        let rack = Rack {
            class: AtomicU64::new(0),
            limit: AtomicU32::new(0),
            top: AtomicU32::new(0),
            refusals: AtomicU32::new(0),
            tiers: [const { OnceLock::new() }; TIERS],
        };
        if cfg!(all(test, loom)) {
            rack.slot_to_fill(0); // loom does not see what a `OnceLock` orders.
        }
        rack
    }
}

impl Rack {
    /// Whether it is for blocks of a class now. For the owner.
    #[inline]
    pub(crate) fn holds(&self, class: Class) -> bool {
        self.class.load(Ordering::Relaxed) == class.0
    }

    /// Whether it refuses a block of another class: until it is empty or has been in the way for long enough. For the
    /// owner.
    #[inline]
    pub(crate) fn refuses(&self) -> bool {
        let refusals = self.refusals.load(Ordering::Relaxed);
        let refuses = self.top.load(Ordering::Relaxed) != 0 && refusals < PATIENCE;
        self.refusals.store(refusals + u32::from(refuses), Ordering::Relaxed);
        refuses
    }

    /// Makes it one for blocks of another class, up to so many bytes. Returns what was in it, to be given back. For the
    /// owner.
    #[inline(never)]
    pub(crate) fn adopt(&self, class: Class, most_bytes: u64) -> Vec<BlockHandle> {
        let displaced = std::iter::from_fn(|| self.pop()).collect();
        let limit = (most_bytes / class.size_bytes()).clamp(FEWEST, SLOTS as u64);
        self.limit.store(limit as u32, Ordering::Relaxed);
        self.class.store(class.0, Ordering::Relaxed);
        self.refusals.store(0, Ordering::Relaxed);
        displaced
    }

    /// A block of its own class was asked for. For the owner.
    #[inline]
    pub(crate) fn was_useful(&self) {
        self.refusals.store(0, Ordering::Relaxed);
    }

    /// Takes the newest block that nobody has taken. For the owner.
    #[inline]
    pub(crate) fn pop(&self) -> Option<BlockHandle> {
        let mut top = self.top.load(Ordering::Relaxed);
        while top > 0 {
            top -= 1;
            self.top.store(top, Ordering::Relaxed);
            if let Some(handle) = empty(self.slot(top)?) {
                return Some(handle);
            }
        }
        None
    }

    /// Whether there is no room. Others may have made some that does not count yet. For the owner.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.top.load(Ordering::Relaxed) >= self.limit.load(Ordering::Relaxed)
    }

    /// Adds a block; there must be room. For the owner.
    #[inline]
    pub(crate) fn push(&self, handle: BlockHandle) {
        let top = self.top.load(Ordering::Relaxed);
        // Release: whoever takes the block sees what its owner has noted of it.
        self.slot_to_fill(top).store(handle.to_raw(), Ordering::Release);
        self.top.store(top + 1, Ordering::Release);
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&AtomicU64> {
        let (tier, offset) = locate(index);
        self.tiers.get(tier)?.get()?.get(offset)
    }

    #[inline]
    fn slot_to_fill(&self, index: u32) -> &AtomicU64 {
        let (tier, offset) = locate(index);
        let slots = self.tiers[tier].get_or_init(|| (0..slots_of(tier)).map(|_| AtomicU64::new(0)).collect());
        &slots[offset]
    }

    /// Takes some of what a full rack holds, at most half. For the owner.
    #[cold]
    pub(crate) fn overflow(&self) -> Vec<BlockHandle> {
        let batch = (self.limit.load(Ordering::Relaxed) / 2).min(BATCH);
        let mut blocks = Vec::with_capacity(batch as usize);
        blocks.extend((0..batch).map_while(|_| self.pop()));
        blocks
    }

    /// Adds its blocks to `taken`, up to so many in all. For any thread.
    pub(crate) fn take_back(&self, taken: &mut Vec<BlockHandle>, most: usize) {
        // The owner fills a slot before it raises `top`, and who must see every block has passed a barrier since.
        for slot in (0..self.top.load(Ordering::Acquire)).map_while(|index| self.slot(index)) {
            if taken.len() >= most {
                return;
            }
            if slot.load(Ordering::Relaxed) != 0 {
                taken.extend(empty(slot));
            }
        }
    }
}

fn slots_of(tier: usize) -> usize {
    FIRST_SLOTS << tier.saturating_sub(1)
}

/// The tier of a slot, and where it is in there.
#[inline]
fn locate(index: u32) -> (usize, usize) {
    let index = index as usize;
    match (index / FIRST_SLOTS).checked_ilog2() {
        None => (0, index),
        Some(doublings) => (doublings as usize + 1, index - (FIRST_SLOTS << doublings)),
    }
}

#[inline]
fn empty(slot: &AtomicU64) -> Option<BlockHandle> {
    let raw = slot.swap(0, Ordering::Acquire);
    (raw != 0).then(|| BlockHandle::from_raw(raw))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn slots_tile_their_tiers() {
        let mut expected = (0, 0);
        for index in 0..SLOTS as u32 {
            assert_eq!(locate(index), expected, "slot {index}");
            expected.1 += 1;
            if expected.1 == slots_of(expected.0) {
                expected = (expected.0 + 1, 0);
            }
        }
        assert_eq!(expected, (TIERS, 0), "nothing is left over");
    }

    #[test]
    fn a_rack_gives_back_what_was_put_in_newest_first() {
        let rack = Rack::default();
        let class = Class::new(Lane::of(crate::DomainId(0), crate::MemoryType::Tensor), 1).unwrap();
        assert_eq!(rack.adopt(class, u64::MAX), []);
        let handle = |index: u32| BlockHandle { index, generation: index + 1 };
        let blocks: Vec<_> = (0..SLOTS as u32).map(handle).collect();
        blocks.iter().for_each(|&block| rack.push(block));
        assert!(rack.is_full());
        let mut taken = Vec::new();
        rack.take_back(&mut taken, 100);
        assert_eq!(taken, blocks[..100], "others take the oldest");
        let popped: Vec<_> = std::iter::from_fn(|| rack.pop()).collect();
        assert!(popped.iter().eq(blocks[100..].iter().rev()));
        rack.take_back(&mut taken, usize::MAX);
        assert_eq!(taken.len(), 100, "nothing is left");
    }
}
