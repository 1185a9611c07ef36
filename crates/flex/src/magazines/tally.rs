//! What went through a magazine, for the statistics: bytes, requested bytes and blocks.
//!
//! The owner adds up what it placed and freed without the arena; under the allocator mutex the sums since the last time
//! are *settled*: added to the arena's counters. Sums only grow. All fields but `highest` have one writer: the owner
//! those it adds to, the holder of the mutex the settled ones.
//!
//! Peaks are exact if one thread uses the allocator: the owner keeps the highest balance since it was settled. With
//! more threads a peak may miss what others hold at that moment without having settled it, or what one of them
//! allocates and frees while its sums are read; and in the rare case that one writes its highest balance just when
//! another settles it, that balance counts again. The peaks of `inactive_split` see the arena's own steps only.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Amounts of the three counters that follow allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Amounts {
    pub(crate) size_bytes: u64,
    pub(crate) requested_bytes: u64,
    pub(crate) blocks: u64,
}

impl Amounts {
    /// Of one block.
    #[inline]
    pub(crate) fn block(size_bytes: u64, slack_bytes: u8) -> Amounts {
        Amounts { size_bytes, requested_bytes: size_bytes - u64::from(slack_bytes), blocks: 1 }
    }

    /// Field by field.
    #[inline]
    pub(crate) fn zip(self, other: Amounts, combine: impl Fn(u64, u64) -> u64) -> Amounts {
        Amounts {
            size_bytes: combine(self.size_bytes, other.size_bytes),
            requested_bytes: combine(self.requested_bytes, other.requested_bytes),
            blocks: combine(self.blocks, other.blocks),
        }
    }

    /// Whether no field is less than the other's.
    #[inline]
    pub(crate) fn covers(self, other: Amounts) -> bool {
        self.size_bytes >= other.size_bytes
            && self.requested_bytes >= other.requested_bytes
            && self.blocks >= other.blocks
    }
}

/// What is to be settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Settlement {
    pub(crate) placed: Amounts,
    pub(crate) freed: Amounts,
    /// The most that what was placed exceeded what was freed, at any moment since the last time.
    pub(crate) highest: Amounts,
}

#[derive(Default)]
struct Sums {
    size_bytes: AtomicU64,
    requested_bytes: AtomicU64,
    blocks: AtomicU64,
}

impl Sums {
    #[inline]
    fn read(&self, ordering: Ordering) -> Amounts {
        Amounts {
            size_bytes: self.size_bytes.load(ordering),
            requested_bytes: self.requested_bytes.load(ordering),
            blocks: self.blocks.load(ordering),
        }
    }

    #[inline]
    fn write(&self, amounts: Amounts, ordering: Ordering) {
        self.size_bytes.store(amounts.size_bytes, ordering);
        self.requested_bytes.store(amounts.requested_bytes, ordering);
        self.blocks.store(amounts.blocks, ordering);
    }
}

/// The sums of one magazine.
#[derive(Default)]
pub(crate) struct Tally {
    placed: Sums,
    freed: Sums,
    /// The highest balance since it was settled; as wrapped differences.
    highest: Sums,
    settled_placed: Sums,
    settled_freed: Sums,
}

impl Tally {
    /// A parked block was handed out. For the owner.
    #[inline]
    pub(crate) fn place(&self, block: Amounts) {
        let placed = self.placed.read(Ordering::Relaxed).zip(block, u64::wrapping_add);
        self.placed.write(placed, Ordering::Relaxed);
        let balance = placed.zip(self.freed.read(Ordering::Relaxed), u64::wrapping_sub);
        self.highest.write(self.highest.read(Ordering::Relaxed).zip(balance, later), Ordering::Relaxed);
    }

    /// A block was parked. For the owner.
    #[inline]
    pub(crate) fn free(&self, block: Amounts) {
        let freed = self.freed.read(Ordering::Relaxed).zip(block, u64::wrapping_add);
        // Release: who sees the free sees that its block was placed, be it by another thread.
        self.freed.write(freed, Ordering::Release);
    }

    /// Whether nothing is to be settled. For the owner.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        let (freed, settled) = (&self.freed.blocks, &self.settled_freed.blocks);
        self.has_settled_placements() && freed.load(Ordering::Relaxed) == settled.load(Ordering::Relaxed)
    }

    /// Whether no placement is to be settled. For the owner.
    #[inline]
    pub(crate) fn has_settled_placements(&self) -> bool {
        let (placed, settled) = (&self.placed.blocks, &self.settled_placed.blocks);
        placed.load(Ordering::Relaxed) == settled.load(Ordering::Relaxed)
    }

    /// What was freed, ever. Whoever settles more than one reads this of all before [`settlement`](Self::settlement).
    pub(crate) fn freed(&self) -> Amounts {
        self.freed.read(Ordering::Acquire)
    }

    /// What is to be settled, given what was freed. Under the mutex.
    pub(crate) fn settlement(&self, freed: Amounts) -> (Settlement, Settled) {
        let placed = self.placed.read(Ordering::Relaxed);
        let (placed_before, freed_before) =
            (self.settled_placed.read(Ordering::Relaxed), self.settled_freed.read(Ordering::Relaxed));
        let balance_before = placed_before.zip(freed_before, u64::wrapping_sub);
        let highest = self.highest.read(Ordering::Relaxed).zip(balance_before, later);
        let settlement = Settlement {
            placed: placed.zip(placed_before, u64::wrapping_sub),
            freed: freed.zip(freed_before, u64::wrapping_sub),
            highest: highest.zip(balance_before, u64::wrapping_sub),
        };
        (settlement, Settled { placed, freed })
    }

    /// It has been settled. Under the mutex.
    pub(crate) fn settle(&self, settled: Settled) {
        self.settled_placed.write(settled.placed, Ordering::Relaxed);
        self.settled_freed.write(settled.freed, Ordering::Relaxed);
        // The owner may write it at the same time; then a peak is a little too high or too low.
        self.highest.write(settled.placed.zip(settled.freed, u64::wrapping_sub), Ordering::Relaxed);
    }
}

/// Up to where sums were settled.
#[derive(Clone, Copy)]
pub(crate) struct Settled {
    placed: Amounts,
    freed: Amounts,
}

/// The greater of two wrapped differences.
#[inline]
fn later(left: u64, right: u64) -> u64 {
    if (left.wrapping_sub(right) as i64) < 0 { right } else { left }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn bytes(size_bytes: u64) -> Amounts {
        Amounts::block(size_bytes, 3)
    }

    #[test]
    fn what_was_settled_is_not_settled_again_and_the_highest_balance_is_kept() {
        let tally = Tally::default();
        tally.free(bytes(128));
        tally.place(bytes(256));
        tally.place(bytes(512));
        tally.free(bytes(512));
        let (settlement, settled) = tally.settlement(tally.freed());
        assert_eq!(settlement.placed, Amounts { size_bytes: 768, requested_bytes: 762, blocks: 2 });
        assert_eq!(settlement.freed, Amounts { size_bytes: 640, requested_bytes: 634, blocks: 2 });
        assert_eq!(settlement.highest, Amounts { size_bytes: 640, requested_bytes: 637, blocks: 1 });
        tally.settle(settled);
        assert_eq!(tally.settlement(tally.freed()).0, Settlement::default());
        tally.free(bytes(128));
        let (settlement, _) = tally.settlement(tally.freed());
        assert_eq!((settlement.placed, settlement.freed), (Amounts::default(), bytes(128)));
        assert_eq!(settlement.highest, Amounts::default(), "a fall is no peak");
    }
}
