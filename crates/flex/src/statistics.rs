//! Counters of one device.
//!
//! The living counters are in the arena (`arena/counters.rs`), under the allocator mutex; a [`Statistics`] is made of
//! them at one moment.

/// A quantity that rises and falls.
///
/// `current == allocated - freed` between two calls of [`Stat::reset_accumulated`].
///
/// ```
/// let mut stat = flex::Stat::default();
/// stat.increase(256);
/// stat.decrease(128);
/// assert_eq!((stat.current, stat.peak, stat.allocated, stat.freed), (128, 256, 256, 128));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stat {
    /// The value now.
    pub current: u64,
    /// The highest value since the last [`Stat::reset_peak`].
    pub peak: u64,
    /// The sum of all increases since the last [`Stat::reset_accumulated`].
    pub allocated: u64,
    /// The sum of all decreases since the last [`Stat::reset_accumulated`].
    pub freed: u64,
}

impl Stat {
    /// Adds to the value.
    #[inline]
    pub fn increase(&mut self, amount: u64) {
        self.current += amount;
        self.peak = self.peak.max(self.current);
        self.allocated += amount;
    }

    /// Takes from the value.
    ///
    /// # Panics
    ///
    /// In builds with overflow checks, if the value would fall below zero.
    #[inline]
    pub fn decrease(&mut self, amount: u64) {
        self.current -= amount;
        self.freed += amount;
    }

    /// Moves to a value computed elsewhere, as one increase or decrease.
    #[inline]
    pub fn follow(&mut self, value: u64) {
        if value >= self.current {
            self.increase(value - self.current);
        } else {
            self.decrease(self.current - value);
        }
    }

    /// Starts the peak again at the current value.
    pub fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    /// Starts the sums again at zero.
    pub fn reset_accumulated(&mut self) {
        self.allocated = 0;
        self.freed = 0;
    }
}

/// Everything counted for one device, at one moment.
///
/// All figures are of tensor memory unless they say otherwise; program memory has its own small set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes in occupied blocks, rounded sizes.
    pub allocated_bytes: Stat,
    /// Bytes asked for by the owners of the occupied blocks.
    pub requested_bytes: Stat,
    /// Bytes in blocks that are occupied or wait for the device to be done with them; today the occupied ones.
    pub active_bytes: Stat,
    /// Usable bytes of the acquired regions.
    pub reserved_bytes: Stat,
    /// Bytes in free blocks of regions that hold at least one occupied block.
    pub inactive_split_bytes: Stat,
    /// Occupied blocks; an interleaved allocation counts once per chunk.
    pub allocation: Stat,
    /// Occupied blocks and those that wait for the device; today the occupied ones.
    pub active: Stat,
    /// Acquired regions.
    pub segment: Stat,
    /// Free blocks of regions that hold at least one occupied block.
    pub inactive_split: Stat,
    /// Requests that ended in an out-of-memory error, of either memory type.
    pub num_ooms: u64,
    /// Requests whose first search failed and that were searched for again, of either memory type.
    pub num_alloc_retries: u64,
    /// Usable bytes of all tensor regions, acquired or not.
    pub capacity_bytes: u64,
    /// Bytes that are not allocated; a region not acquired is free. Blocks that a thread is just giving back count, but
    /// may not have coalesced yet.
    pub free_bytes: u64,
    /// The largest free block, in bytes.
    pub largest_free_bytes: u64,
    /// Program memory.
    pub program: ProgramStatistics,
}

/// Counters of program memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ProgramStatistics {
    /// Bytes in occupied blocks, rounded sizes.
    pub allocated_bytes: Stat,
    /// Bytes asked for by the owners of the occupied blocks.
    pub requested_bytes: Stat,
    /// Occupied blocks.
    pub allocation: Stat,
    /// Usable bytes of the acquired regions.
    pub reserved_bytes: Stat,
    /// Usable bytes of all program regions, acquired or not.
    pub capacity_bytes: u64,
    /// Bytes that are not allocated; a region not acquired is free.
    pub free_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follow_counts_as_one_step_and_resets_are_apart() {
        let mut stat = Stat::default();
        stat.follow(10);
        stat.follow(4);
        stat.follow(4);
        assert_eq!(stat, Stat { current: 4, peak: 10, allocated: 10, freed: 6 });
        stat.reset_peak();
        assert_eq!(stat, Stat { current: 4, peak: 4, allocated: 10, freed: 6 });
        stat.reset_accumulated();
        assert_eq!(stat, Stat { current: 4, peak: 4, allocated: 0, freed: 0 });
    }
}
