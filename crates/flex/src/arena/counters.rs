//! The living counters of an arena, and the statistics made of them.
//!
//! A request that is rolled back leaves no trace: counters move once, when all of a request is placed. Only the
//! running totals of free memory beside occupied blocks follow every step, and return to what they were.
//!
//! Protected by the allocator mutex.

use super::{Arena, bytes_of};
use crate::error::FlexError;
use super::request::{Figures, Released};
use super::BlockHandle;
use crate::directive::MemoryType;
use crate::magazines::tally::{Amounts, Settlement};
use crate::statistics::{ProgramStatistics, Stat, Statistics};
use crate::units::ALIGNMENT_BYTES;

/// Counters of one memory type.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TypeCounters {
    pub(crate) allocated_bytes: Stat,
    pub(crate) requested_bytes: Stat,
    pub(crate) allocation: Stat,
    pub(crate) reserved_bytes: Stat,
    pub(crate) segment: Stat,
    pub(crate) inactive_split_bytes: Stat,
    pub(crate) inactive_split: Stat,
    /// Running totals of [`super::region::Region::inactive_split`]: units, then blocks.
    pub(crate) split: (u64, u64),
}

impl TypeCounters {
    fn settle_split(&mut self) {
        self.inactive_split_bytes.follow(self.split.0 * ALIGNMENT_BYTES);
        self.inactive_split.follow(self.split.1);
    }

    fn stats_mut(&mut self) -> [&mut Stat; 7] {
        [
            &mut self.allocated_bytes,
            &mut self.requested_bytes,
            &mut self.allocation,
            &mut self.reserved_bytes,
            &mut self.segment,
            &mut self.inactive_split_bytes,
            &mut self.inactive_split,
        ]
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

    fn of_mut(&mut self, memory_type: MemoryType) -> &mut TypeCounters {
        &mut self.by_type[memory_type.index()]
    }

    /// Bytes in occupied blocks, rounded sizes.
    pub(crate) fn allocated_bytes(&self, memory_type: MemoryType) -> u64 {
        self.of(memory_type).allocated_bytes.current
    }

    /// Follows one region's free memory beside occupied blocks.
    #[inline]
    pub(crate) fn move_split(&mut self, memory_type: MemoryType, before: (u64, u64), after: (u64, u64)) {
        let split = &mut self.of_mut(memory_type).split;
        split.0 = split.0 - before.0 + after.0;
        split.1 = split.1 - before.1 + after.1;
    }

    /// All chunks of a request are placed.
    #[inline]
    pub(crate) fn placed(
        &mut self,
        memory_type: MemoryType,
        total_bytes: u64,
        requested_bytes: u64,
        chunk_count: u64,
    ) {
        let counters = self.of_mut(memory_type);
        counters.allocated_bytes.increase(total_bytes);
        counters.requested_bytes.increase(requested_bytes);
        counters.allocation.increase(chunk_count);
        counters.settle_split();
    }

    /// A block is freed.
    #[inline]
    pub(crate) fn released(&mut self, released: &Released) {
        let counters = self.of_mut(released.memory_type);
        counters.allocated_bytes.decrease(released.size_bytes);
        counters.requested_bytes.decrease(released.requested_bytes);
        counters.allocation.decrease(1);
        counters.settle_split();
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
            size_bytes: tensor.allocated_bytes.current,
            requested_bytes: tensor.requested_bytes.current,
            blocks: tensor.allocation.current,
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
        if node.generation != handle.generation {
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
        let before = region.inactive_split();
        region.give_back(&mut self.blocks, index);
        let (memory_type, after) = (region.memory_type, region.inactive_split());
        self.counters.move_split(memory_type, before, after);
        self.counters.of_mut(memory_type).settle_split();
        self.counters.parked.change(Amounts::default(), Amounts::block(bytes_of(size_units), slack_bytes));
        Ok(())
    }

    /// One consistent copy of all counters.
    pub(crate) fn statistics(&self) -> Statistics {
        let tensor = self.counters.of(MemoryType::Tensor);
        let figures = self.figures_of(MemoryType::Tensor);
        Statistics {
            allocated_bytes: tensor.allocated_bytes,
            requested_bytes: tensor.requested_bytes,
            active_bytes: tensor.allocated_bytes,
            reserved_bytes: tensor.reserved_bytes,
            inactive_split_bytes: tensor.inactive_split_bytes,
            allocation: tensor.allocation,
            active: tensor.allocation,
            segment: tensor.segment,
            inactive_split: tensor.inactive_split,
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
            allocated_bytes: program.allocated_bytes,
            requested_bytes: program.requested_bytes,
            allocation: program.allocation,
            reserved_bytes: program.reserved_bytes,
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
            counters.stats_mut().into_iter().for_each(Stat::reset_peak);
        }
    }

    /// Starts all sums, and the counts of errors and retries, again at zero.
    pub(crate) fn reset_accumulated(&mut self) {
        for counters in &mut self.counters.by_type {
            counters.stats_mut().into_iter().for_each(Stat::reset_accumulated);
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
