//! One rack of a magazine: a stack of parked blocks of one class.
//!
//! The owner pushes and pops at the top; others empty slots wherever they find a block. A slot is emptied by a swap, so
//! that a block goes to one thread. `class`, `limit` and `top` are the owner's alone; they are atomics because the rack
//! is shared. Slots are made when the rack is first used. No lock.

use std::sync::OnceLock;

use crate::arena::BlockHandle;
use crate::directive::Lane;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::units::ALIGNMENT_BYTES;

/// Racks of a magazine.
pub(crate) const RACKS: usize = if cfg!(all(test, any(loom, shuttle))) { 1 } else { 64 };
/// The most blocks of a rack.
pub(crate) const SLOTS: usize = if cfg!(all(test, any(loom, shuttle))) { 2 } else { 512 };
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
        // Fibonacci hashing: sizes that are multiples of a power of two spread as well as others.
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % RACKS
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
    slots: OnceLock<Box<[AtomicU64]>>,
}

impl Rack {
    pub(crate) fn new() -> Rack {
        // loom does not see what a `OnceLock` orders.
        let slots = if cfg!(all(test, loom)) { empty_slots().into() } else { OnceLock::new() };
        Rack {
            class: AtomicU64::new(0),
            limit: AtomicU32::new(0),
            top: AtomicU32::new(0),
            refusals: AtomicU32::new(0),
            slots,
        }
    }

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
        let slots = self.slots.get()?;
        let mut top = self.top.load(Ordering::Relaxed);
        while top > 0 {
            top -= 1;
            self.top.store(top, Ordering::Relaxed);
            if let Some(handle) = empty(slots.get(top as usize)?) {
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
        let slots = self.slots.get_or_init(empty_slots);
        // Release: whoever takes the block sees what its owner has noted of it.
        slots[top as usize].store(handle.to_raw(), Ordering::Release);
        self.top.store(top + 1, Ordering::Relaxed);
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
        for slot in self.slots.get().iter().flat_map(|slots| slots.iter()) {
            if taken.len() >= most {
                return;
            }
            if slot.load(Ordering::Relaxed) != 0 {
                taken.extend(empty(slot));
            }
        }
    }
}

fn empty_slots() -> Box<[AtomicU64]> {
    (0..SLOTS).map(|_| AtomicU64::new(0)).collect()
}

#[inline]
fn empty(slot: &AtomicU64) -> Option<BlockHandle> {
    let raw = slot.swap(0, Ordering::Acquire);
    (raw != 0).then(|| BlockHandle::from_raw(raw))
}
