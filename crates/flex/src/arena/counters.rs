//! The living counters of an arena, and the statistics made of them.
//!
//! Only what cannot be derived is kept ([`Meter`], [`InactiveSplit`]): every request moves these counters.
//!
//! A request that is rolled back leaves no trace: counters move once, when all of a request is placed. Only the
//! current number of gaps and the bytes of regions in use follow every chunk, and return to what they were.
//!
//! Protected by the allocator mutex.

use super::Arena;
use super::request::{Figures, Released};
use crate::directive::MemoryType;
use crate::statistics::{ProgramStatistics, Stat, Statistics};

/// A quantity that rises and falls: a [`Stat`] without `freed`, which is `allocated + base - current`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Meter {
    current: u64,
    peak: u64,
    allocated: u64,
    /// The value at the last reset of the sums.
    base: u64,
}

impl Meter {
    #[inline]
    fn increase(&mut self, amount: u64) {
        self.current += amount;
        self.allocated += amount;
        if self.current > self.peak {
            self.peak = self.current;
        }
    }

    #[inline]
    fn decrease(&mut self, amount: u64) {
        self.current -= amount;
    }

    /// Counts a step from a value to the current one.
    fn stepped_from(&mut self, before: u64) {
        self.allocated += self.current.saturating_sub(before);
        self.peak = self.peak.max(self.current);
    }

    /// As observers see it.
    pub(crate) fn stat(&self) -> Stat {
        let Meter { current, peak, allocated, base } = *self;
        Stat { current, peak, allocated, freed: allocated + base - current }
    }

    fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    fn reset_accumulated(&mut self) {
        (self.allocated, self.base) = (0, self.current);
    }
}

/// Free bytes of the regions in use, those with an occupied block, as a view of the allocated bytes.
///
/// `current == in_use_bytes - allocated`. While the regions in use stay the same, these bytes fall by what is allocated
/// and rise by what is freed: `allocated == freed of the allocated bytes + offset`, and the peak is where the allocated
/// bytes are lowest. Everything else goes through [`TypeCounters::stepped_from`]. Sums wrap around.
#[derive(Debug, Clone, Copy, Default)]
struct InactiveSplit {
    /// Usable bytes of the regions in use.
    in_use_bytes: u64,
    /// The peak before the regions in use changed last.
    peak: u64,
    /// The least bytes allocated since then.
    lowest_allocated: u64,
    offset: u64,
    /// The value at the last reset of the sums.
    base: u64,
}

/// The figures that follow every chunk, as they were before a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    in_use_bytes: u64,
    gaps: u64,
    allocated: Stat,
}

/// Counters of one memory type.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TypeCounters {
    pub(crate) allocated_bytes: Meter,
    pub(crate) requested_bytes: Meter,
    pub(crate) allocation: Meter,
    pub(crate) reserved_bytes: Meter,
    pub(crate) segment: Meter,
    /// Gaps of the regions in use.
    pub(crate) inactive_split: Meter,
    split: InactiveSplit,
}

impl TypeCounters {
    /// Bytes in gaps of the regions in use.
    pub(crate) fn inactive_split_bytes(&self) -> Stat {
        let InactiveSplit { in_use_bytes, peak, lowest_allocated, offset, base } = self.split;
        let current = in_use_bytes - self.allocated_bytes.current;
        let allocated = self.allocated_bytes.stat().freed.wrapping_add(offset);
        let freed = allocated.wrapping_add(base).wrapping_sub(current);
        Stat { current, peak: peak.max(in_use_bytes - lowest_allocated), allocated, freed }
    }

    fn before(&self) -> Before {
        let in_use_bytes = self.split.in_use_bytes;
        Before { in_use_bytes, gaps: self.inactive_split.current, allocated: self.allocated_bytes.stat() }
    }

    /// Counts all that happened since then as one step.
    fn stepped_from(&mut self, before: Before) {
        self.inactive_split.stepped_from(before.gaps);
        let allocated = self.allocated_bytes.stat();
        let split = &mut self.split;
        split.peak = split.peak.max(before.in_use_bytes - split.lowest_allocated);
        split.lowest_allocated = allocated.current;
        let rise = (split.in_use_bytes - allocated.current)
            .saturating_sub(before.in_use_bytes - before.allocated.current);
        // Seen as a view, it rises by what was freed.
        let freed = allocated.freed - before.allocated.freed;
        split.offset = split.offset.wrapping_add(rise).wrapping_sub(freed);
    }

    #[inline]
    fn increase(&mut self, total_bytes: u64, requested_bytes: u64, chunk_count: u64) {
        self.allocated_bytes.increase(total_bytes);
        self.requested_bytes.increase(requested_bytes);
        self.allocation.increase(chunk_count);
    }

    #[inline]
    fn decrease(&mut self, released: Released) {
        self.allocated_bytes.decrease(released.size_bytes);
        self.requested_bytes.decrease(released.requested_bytes);
        self.allocation.decrease(1);
    }

    fn meters_mut(&mut self) -> [&mut Meter; 6] {
        [
            &mut self.allocated_bytes,
            &mut self.requested_bytes,
            &mut self.allocation,
            &mut self.reserved_bytes,
            &mut self.segment,
            &mut self.inactive_split,
        ]
    }

    fn reset_peak(&mut self) {
        self.split.peak = self.inactive_split_bytes().current;
        self.split.lowest_allocated = self.allocated_bytes.current;
        self.meters_mut().into_iter().for_each(Meter::reset_peak);
    }

    fn reset_accumulated(&mut self) {
        (self.split.offset, self.split.base) = (0, self.inactive_split_bytes().current);
        self.meters_mut().into_iter().for_each(Meter::reset_accumulated);
    }
}

/// All counters of an arena.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    by_type: [TypeCounters; 2],
    out_of_memory_errors: u64,
    retries: u64,
}

impl Counters {
    /// The counters of one memory type.
    pub(crate) fn of(&self, memory_type: MemoryType) -> &TypeCounters {
        &self.by_type[memory_type.index()]
    }

    #[inline]
    fn of_mut(&mut self, memory_type: MemoryType) -> &mut TypeCounters {
        &mut self.by_type[memory_type.index()]
    }

    /// Bytes in occupied blocks, rounded sizes.
    pub(crate) fn allocated_bytes(&self, memory_type: MemoryType) -> u64 {
        self.of(memory_type).allocated_bytes.current
    }

    /// What [`placed`](Self::placed) needs to know of the time before the first chunk.
    pub(crate) fn before(&self, memory_type: MemoryType) -> Before {
        self.of(memory_type).before()
    }

    /// A chunk lies in a gap, in place of which there are so many now.
    pub(crate) fn chunk_placed(
        &mut self,
        memory_type: MemoryType,
        gaps_beside: u32,
        comes_into_use_bytes: u64,
    ) {
        let counters = self.of_mut(memory_type);
        counters.split.in_use_bytes += comes_into_use_bytes;
        counters.inactive_split.current += u64::from(gaps_beside);
        counters.inactive_split.current -= u64::from(comes_into_use_bytes == 0);
    }

    /// A chunk is gone, and so many gaps beside it are one now.
    pub(crate) fn chunk_removed(&mut self, memory_type: MemoryType, gaps_beside: u32, out_of_use_bytes: u64) {
        let counters = self.of_mut(memory_type);
        counters.split.in_use_bytes -= out_of_use_bytes;
        counters.inactive_split.current += u64::from(out_of_use_bytes == 0);
        counters.inactive_split.current -= u64::from(gaps_beside);
    }

    /// All chunks of a request are placed.
    pub(crate) fn placed(
        &mut self,
        memory_type: MemoryType,
        total_bytes: u64,
        requested_bytes: u64,
        chunk_count: u64,
        before: Before,
    ) {
        let counters = self.of_mut(memory_type);
        counters.increase(total_bytes, requested_bytes, chunk_count);
        counters.stepped_from(before);
    }

    /// A request of one chunk is placed, in a region in use: all of the above in one.
    #[inline]
    pub(crate) fn placed_one(
        &mut self,
        memory_type: MemoryType,
        size_bytes: u64,
        requested_bytes: u64,
        gaps_beside: u32,
    ) {
        let counters = self.of_mut(memory_type);
        counters.increase(size_bytes, requested_bytes, 1);
        match gaps_beside {
            1 => {}
            0 => counters.inactive_split.decrease(1),
            _ => counters.inactive_split.increase(1),
        }
    }

    /// A block is freed whose region stays in use.
    #[inline(always)]
    pub(crate) fn released(&mut self, released: Released, gaps_beside: u32) {
        let counters = self.of_mut(released.memory_type);
        counters.decrease(released);
        if counters.allocated_bytes.current < counters.split.lowest_allocated {
            counters.split.lowest_allocated = counters.allocated_bytes.current;
        }
        match gaps_beside {
            1 => {}
            0 => counters.inactive_split.increase(1),
            _ => counters.inactive_split.decrease(1),
        }
    }

    /// The last block of a region is freed.
    #[cold]
    #[inline(never)]
    pub(crate) fn released_last(&mut self, released: Released, gaps_beside: u32, out_of_use_bytes: u64) {
        let before = self.before(released.memory_type);
        self.chunk_removed(released.memory_type, gaps_beside, out_of_use_bytes);
        let counters = self.of_mut(released.memory_type);
        counters.decrease(released);
        counters.stepped_from(before);
    }

    /// A region is acquired.
    pub(crate) fn acquired(&mut self, memory_type: MemoryType, usable_bytes: u64) {
        let counters = self.of_mut(memory_type);
        counters.reserved_bytes.increase(usable_bytes);
        counters.segment.increase(1);
    }

    /// A region is given back.
    pub(crate) fn returned(&mut self, memory_type: MemoryType, usable_bytes: u64) {
        let counters = self.of_mut(memory_type);
        counters.reserved_bytes.decrease(usable_bytes);
        counters.segment.decrease(1);
    }
}

impl Arena {
    /// One consistent copy of all counters.
    pub(crate) fn statistics(&self) -> Statistics {
        let tensor = self.counters.of(MemoryType::Tensor);
        let figures = self.figures_of(MemoryType::Tensor);
        Statistics {
            allocated_bytes: tensor.allocated_bytes.stat(),
            requested_bytes: tensor.requested_bytes.stat(),
            active_bytes: tensor.allocated_bytes.stat(),
            reserved_bytes: tensor.reserved_bytes.stat(),
            inactive_split_bytes: tensor.inactive_split_bytes(),
            allocation: tensor.allocation.stat(),
            active: tensor.allocation.stat(),
            segment: tensor.segment.stat(),
            inactive_split: tensor.inactive_split.stat(),
            num_ooms: self.counters.out_of_memory_errors,
            num_alloc_retries: self.counters.retries,
            capacity_bytes: figures.capacity_bytes,
            free_bytes: figures.free_bytes,
            largest_free_bytes: figures.largest_free_bytes,
            program: self.program_statistics(),
        }
    }

    fn program_statistics(&self) -> ProgramStatistics {
        let program = self.counters.of(MemoryType::Program);
        let figures = self.figures_of(MemoryType::Program);
        ProgramStatistics {
            allocated_bytes: program.allocated_bytes.stat(),
            requested_bytes: program.requested_bytes.stat(),
            allocation: program.allocation.stat(),
            reserved_bytes: program.reserved_bytes.stat(),
            capacity_bytes: figures.capacity_bytes,
            free_bytes: figures.free_bytes,
        }
    }

    fn figures_of(&self, memory_type: MemoryType) -> Figures {
        self.figures_where(|_, region| (region.memory_type == memory_type).then_some(true))
            .limited_to(self.limit_left_bytes(memory_type))
    }

    /// Starts all peaks again at the current values.
    pub(crate) fn reset_peak(&mut self) {
        for counters in &mut self.counters.by_type {
            counters.reset_peak();
        }
    }

    /// Starts all sums, and the counts of errors and retries, again at zero.
    pub(crate) fn reset_accumulated(&mut self) {
        for counters in &mut self.counters.by_type {
            counters.reset_accumulated();
        }
        self.counters.out_of_memory_errors = 0;
        self.counters.retries = 0;
    }

    /// A request ended in an out-of-memory error.
    pub(crate) fn count_out_of_memory(&mut self) {
        self.counters.out_of_memory_errors += 1;
    }

    /// A request is searched for again after its first search failed.
    pub(crate) fn count_retry(&mut self) {
        self.counters.retries += 1;
    }
}
