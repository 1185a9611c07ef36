//! The living counters of an arena, and the statistics made of them.
//!
//! Only what cannot be derived is kept ([`Meter`], [`InactiveSplit`]): every request moves these counters.
//!
//! A request that is rolled back leaves no trace: counters move once, when all of a request is placed.
//!
//! Protected by the allocator mutex.

use super::BlockHandle;
use super::request::{Figures, Released};
use super::{Arena, bytes_of};
use crate::directive::MemoryType;
use crate::error::FlexError;
use crate::magazines::tally::{Amounts, Settlement};
use crate::statistics::{ProgramStatistics, Stat, Statistics};

/// A quantity that rises and falls: a [`Stat`] in the terms that change with the fewest writes, one for a rise and one
/// for a fall.
///
/// `current == risen - fallen` and `fallen == ceiling - peak`. Sums do not start again: a reset remembers where they
/// were.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Meter {
    /// The sum of all rises.
    risen: u64,
    /// What `risen` is to pass for a new peak: every fall moves it.
    ceiling: u64,
    peak: u64,
    /// The peak less the lowest value; only kept by [`Meter::decrease_noting_lowest`].
    depth: u64,
    /// `risen` and `fallen` at the last reset of the sums.
    risen_before: u64,
    fallen_before: u64,
}

impl Meter {
    #[inline(always)]
    fn increase(&mut self, amount: u64) {
        self.risen += amount;
        self.note_peak();
    }

    #[inline(always)]
    fn note_peak(&mut self) {
        if self.risen > self.ceiling {
            self.peak += self.risen - self.ceiling;
            self.depth += self.risen - self.ceiling;
            self.ceiling = self.risen;
        }
    }

    #[inline(always)]
    fn decrease(&mut self, amount: u64) {
        self.ceiling += amount;
        debug_assert!(self.ceiling - self.risen <= self.peak, "below zero: {self:?}");
    }

    #[inline(always)]
    fn decrease_noting_lowest(&mut self, amount: u64) {
        self.decrease(amount);
        let depth = self.ceiling - self.risen;
        if depth > self.depth {
            self.depth = depth;
        }
    }

    /// So many (up to 2) become one. Without a branch but for a new peak: which it is, is as good as random.
    #[inline(always)]
    fn merge(&mut self, count: u32) {
        self.risen += u64::from(count == 0);
        self.ceiling += u64::from(count / 2);
        self.note_peak();
    }

    /// Follows increases and decreases that were counted elsewhere. In between the value was higher by up to `highest`
    /// than before.
    fn catch_up(&mut self, increases: u64, decreases: u64, highest: u64) {
        let above = (self.current() + highest).saturating_sub(self.peak);
        self.peak += above;
        self.depth += above;
        self.ceiling += above + decreases;
        self.risen += increases;
        self.note_peak();
        self.depth = self.depth.max(self.ceiling - self.risen);
    }

    /// The value now.
    #[inline]
    pub(crate) fn current(&self) -> u64 {
        self.peak - (self.ceiling - self.risen)
    }

    /// The lowest value since [`Meter::forget_lowest`].
    fn lowest(&self) -> u64 {
        self.peak - self.depth
    }

    fn forget_lowest(&mut self) {
        self.depth = self.ceiling - self.risen;
    }

    /// The sum of all falls.
    fn fallen(&self) -> u64 {
        self.ceiling - self.peak
    }

    /// As observers see it.
    pub(crate) fn stat(&self) -> Stat {
        Stat {
            current: self.current(),
            peak: self.peak,
            allocated: self.risen - self.risen_before,
            freed: self.fallen() - self.fallen_before,
        }
    }

    fn reset_peak(&mut self) {
        self.depth -= self.ceiling - self.risen;
        (self.peak, self.ceiling) = (self.current(), self.risen);
    }

    fn reset_accumulated(&mut self) {
        (self.risen_before, self.fallen_before) = (self.risen, self.fallen());
    }
}

/// Free bytes of the regions in use, those with an occupied block, as a view of the allocated bytes.
///
/// `current == in_use_bytes - allocated`. While the regions in use stay the same, these bytes fall by what is allocated
/// and rise by what is freed: `allocated == freed of the allocated bytes + offset`, and the peak is where the allocated
/// bytes are lowest. Everything else is a [`Step`]. Sums wrap around.
#[derive(Debug, Clone, Copy, Default)]
struct InactiveSplit {
    /// Usable bytes of the regions in use.
    in_use_bytes: u64,
    /// The peak before the regions in use changed last.
    peak: u64,
    offset: u64,
    /// The value at the last reset of the sums.
    base: u64,
}

/// What a request does to gaps and to the regions in use, beyond the usual: for those of more than one chunk, and
/// where a region comes into use or goes out of it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Step {
    gaps: i64,
    in_use_bytes: i64,
}

impl Step {
    /// The first block of a region is placed, in place of a gap that did not count; the region has `in_use_bytes`.
    pub(crate) fn first_block(&mut self, gaps_beside: u32, in_use_bytes: u64) {
        self.gaps += i64::from(gaps_beside);
        self.in_use_bytes += in_use_bytes as i64;
    }

    /// Another block is placed, in place of a gap.
    pub(crate) fn another_block(&mut self, gaps_beside: u32) {
        self.gaps += i64::from(gaps_beside) - 1;
    }
}

/// Counters of one memory type.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TypeCounters {
    pub(crate) allocated_bytes: Meter,
    pub(crate) requested_bytes: Meter,
    pub(crate) allocation: Meter,
    /// Gaps of the regions in use.
    pub(crate) inactive_split: Meter,
    pub(crate) reserved_bytes: Meter,
    pub(crate) segment: Meter,
    split: InactiveSplit,
}

impl TypeCounters {
    /// Bytes in gaps of the regions in use.
    pub(crate) fn inactive_split_bytes(&self) -> Stat {
        let allocated = self.allocated_bytes.stat();
        let InactiveSplit { in_use_bytes, offset, base, .. } = self.split;
        let current = in_use_bytes.saturating_sub(allocated.current);
        let peak = self.split.peak.max(in_use_bytes.saturating_sub(self.allocated_bytes.lowest()));
        let allocated = allocated.freed.wrapping_add(offset);
        Stat { current, peak, allocated, freed: allocated.wrapping_add(base).wrapping_sub(current) }
    }

    /// Counts what is not usual: all that `change` and the step do, as one.
    fn step(&mut self, step: Step, change: impl FnOnce(&mut TypeCounters)) {
        let (split_before, freed_before) = (self.inactive_split_bytes(), self.allocated_bytes.stat().freed);
        change(self);
        let allocated = self.allocated_bytes.stat();
        let split = &mut self.split;
        split.in_use_bytes = split.in_use_bytes.wrapping_add_signed(step.in_use_bytes);
        split.peak = split_before.peak;
        self.allocated_bytes.forget_lowest();
        let current = split.in_use_bytes.saturating_sub(allocated.current);
        let rise = current.saturating_sub(split_before.current);
        // The view sees as a rise what was freed.
        let seen = allocated.freed - freed_before;
        split.offset = split.offset.wrapping_add(rise).wrapping_sub(seen);
        match step.gaps {
            0.. => self.inactive_split.increase(step.gaps as u64),
            _ => self.inactive_split.decrease(step.gaps.unsigned_abs()),
        }
    }

    #[inline]
    fn increase(&mut self, total_bytes: u64, requested_bytes: u64, chunk_count: u64) {
        self.allocated_bytes.increase(total_bytes);
        self.requested_bytes.increase(requested_bytes);
        self.allocation.increase(chunk_count);
    }

    #[inline]
    fn decrease(&mut self, released: Released) {
        self.allocated_bytes.decrease_noting_lowest(released.size_bytes);
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
        self.allocated_bytes.forget_lowest();
        self.meters_mut().into_iter().for_each(Meter::reset_peak);
    }

    fn reset_accumulated(&mut self) {
        (self.split.offset, self.split.base) = (0, self.inactive_split_bytes().current);
        self.meters_mut().into_iter().for_each(Meter::reset_accumulated);
    }
}

/// What occupied tensor blocks add up to beyond the counters: blocks parked in magazines, as far as was settled. Not
/// settled yet, it may be below zero.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Parked {
    pub(crate) size_bytes: i64,
    pub(crate) requested_bytes: i64,
    pub(crate) blocks: i64,
}

impl Parked {
    fn change(&mut self, increase: Amounts, decrease: Amounts) {
        let difference = |field: fn(&Amounts) -> u64| field(&increase) as i64 - field(&decrease) as i64;
        self.size_bytes += difference(|amounts| amounts.size_bytes);
        self.requested_bytes += difference(|amounts| amounts.requested_bytes);
        self.blocks += difference(|amounts| amounts.blocks);
    }
}

/// All counters of an arena.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    by_type: [TypeCounters; 2],
    parked: Parked,
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
        self.of(memory_type).allocated_bytes.current()
    }

    /// All chunks of a request are placed.
    pub(crate) fn placed(
        &mut self,
        memory_type: MemoryType,
        total_bytes: u64,
        requested_bytes: u64,
        chunk_count: u64,
        step: Step,
    ) {
        self.of_mut(memory_type)
            .step(step, |counters| counters.increase(total_bytes, requested_bytes, chunk_count));
    }

    /// A request of one chunk is placed, in a region in use.
    #[inline(always)]
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
        counters.inactive_split.merge(gaps_beside);
    }

    /// The last block of a region is freed.
    #[cold]
    #[inline(never)]
    pub(crate) fn released_last(&mut self, released: Released, gaps_beside: u32, out_of_use_bytes: u64) {
        let step = Step { gaps: -i64::from(gaps_beside), in_use_bytes: -(out_of_use_bytes as i64) };
        self.of_mut(released.memory_type).step(step, |counters| counters.decrease(released));
    }

    /// What occupied blocks of a type add up to beyond its counters.
    pub(crate) fn parked(&self, memory_type: MemoryType) -> Parked {
        match memory_type {
            MemoryType::Tensor => self.parked,
            MemoryType::Program => Parked::default(),
        }
    }

    /// The allocated tensor memory.
    fn tensor_amounts(&self) -> Amounts {
        let tensor = self.of(MemoryType::Tensor);
        Amounts {
            size_bytes: tensor.allocated_bytes.current(),
            requested_bytes: tensor.requested_bytes.current(),
            blocks: tensor.allocation.current(),
        }
    }

    fn settle(&mut self, settlement: &Settlement) {
        let Settlement { placed, freed, highest } = settlement;
        self.parked.change(*freed, *placed);
        let tensor = self.of_mut(MemoryType::Tensor);
        tensor.allocated_bytes.catch_up(placed.size_bytes, freed.size_bytes, highest.size_bytes);
        tensor.requested_bytes.catch_up(
            placed.requested_bytes,
            freed.requested_bytes,
            highest.requested_bytes,
        );
        tensor.allocation.catch_up(placed.blocks, freed.blocks, highest.blocks);
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
    /// Whether the counters include so much tensor memory.
    #[inline]
    pub(crate) fn covers(&self, amounts: Amounts) -> bool {
        self.counters.tensor_amounts().covers(amounts)
    }

    /// Whether the counters can follow what went through magazines.
    pub(crate) fn covers_settlement(&self, settlement: &Settlement) -> bool {
        self.counters.tensor_amounts().zip(settlement.placed, u64::wrapping_add).covers(settlement.freed)
    }

    /// Follows what went through magazines.
    pub(crate) fn settle(&mut self, settlement: &Settlement) {
        self.counters.settle(settlement);
    }

    /// Brings the node of a live block up to date that magazines may have handed out again since the arena placed it.
    #[inline]
    pub(crate) fn catch_up(&mut self, handle: BlockHandle, slack_bytes: u8) {
        let node = self.blocks.node_mut(handle.index);
        // After 2^24 - 1 more allocations the generation is the same again.
        if node.generation != handle.generation || node.slack_bytes != slack_bytes {
            node.generation = handle.generation;
            let slack_before = std::mem::replace(&mut node.slack_bytes, slack_bytes);
            self.counters.parked.requested_bytes += i64::from(slack_before) - i64::from(slack_bytes);
        }
    }

    /// Frees a block that was parked: the counters know nothing of it.
    ///
    /// # Errors
    ///
    /// [`FlexError::UnknownAllocation`] if the block is not occupied; nothing changes.
    pub(crate) fn release_parked(&mut self, handle: BlockHandle) -> Result<(), FlexError> {
        let BlockHandle { index, generation } = handle;
        let Some(node) = self.blocks.occupied_at(index) else {
            return Err(FlexError::UnknownAllocation { index, generation });
        };
        node.generation = generation;
        let (size_units, slack_bytes, slot) = (node.size_units, node.slack_bytes, node.slot);
        let region = &mut self.regions[usize::from(slot)];
        let gaps_beside = region.give_back(&mut self.blocks, index);
        let step = if region.is_wholly_free() {
            Step { gaps: -i64::from(gaps_beside), in_use_bytes: -(region.usable_bytes() as i64) }
        } else {
            Step { gaps: 1 - i64::from(gaps_beside), in_use_bytes: 0 }
        };
        self.counters.of_mut(region.memory_type).step(step, |_| ());
        self.counters.parked.change(Amounts::default(), Amounts::block(bytes_of(size_units), slack_bytes));
        Ok(())
    }

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

    /// What is not allocated is free, also what a magazine is just giving back and the regions do not yet know of.
    fn figures_of(&self, memory_type: MemoryType) -> Figures {
        let mut figures = self.figures_where(|_, region| (region.memory_type == memory_type).then_some(true));
        let allocated_bytes = self.counters.of(memory_type).allocated_bytes.stat().current;
        figures.free_bytes = figures.capacity_bytes.saturating_sub(allocated_bytes);
        figures.limited_to(self.limit_left_bytes(memory_type))
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
