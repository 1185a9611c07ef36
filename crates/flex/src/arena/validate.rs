//! The check of the whole structure: every invariant as an equation, recomputed from nothing.
//!
//! Takes time proportional to the number of blocks and bins; tests run it after every step.

use std::fmt;

use super::bins::Bin;
use super::blocks::{MAX_GENERATION, NIL, NodeState};
use super::region::{Phase, Region};
use super::{Arena, RegionSlot, bytes_of};
use crate::directive::MemoryType;

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Fails with the text unless the two are equal.
macro_rules! check_eq {
    ($left:expr, $right:expr, $($text:tt)+) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            return Err(Violation(format!("{}: {left:?} != {right:?}", format_args!($($text)+))));
        }
    }};
}

/// What a walk over blocks adds up to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    occupied_units: u64,
    slack_bytes: u64,
    occupied_blocks: u64,
    free_units: u64,
    free_blocks: u64,
    free_spans: u64,
    held_blocks: u64,
}

impl Arena {
    /// Checks every invariant of the arena.
    pub(crate) fn validate(&self) -> Result<(), Violation> {
        let mut uses = vec![false; self.blocks.len()];
        uses[NIL as usize] = true;
        self.validate_spares(&mut uses)?;
        for memory_type in MemoryType::ALL {
            let mut sum = Sum::default();
            for (slot, region) in self.slots().filter(|(_, region)| region.memory_type == memory_type) {
                let tally = self.validate_region(slot, region, &mut uses)?;
                sum.add(region, &tally);
            }
            self.validate_counters(memory_type, &sum)?;
        }
        check_eq!(self.sole, self.sole_regions(), "only regions by lane");
        let lost = uses.iter().position(|&used| !used);
        check_eq!(lost, None, "node neither spare nor in a region");
        Ok(())
    }

    fn validate_spares(&self, uses: &mut [bool]) -> Result<(), Violation> {
        let mut index = self.blocks.spare_head();
        while index != NIL {
            check_eq!(self.blocks.node(index).state, NodeState::Spare, "state of spare node {index}");
            check_eq!(
                std::mem::replace(&mut uses[index as usize], true),
                false,
                "spare node {index} seen before"
            );
            index = self.blocks.node(index).next_free;
        }
        Ok(())
    }

    fn validate_region(
        &self,
        slot: RegionSlot,
        region: &Region,
        uses: &mut [bool],
    ) -> Result<Tally, Violation> {
        let tally = self.validate_tiling(slot, region, uses)?;
        check_eq!(u64::from(region.free_units), tally.free_units, "free units of {slot:?}");
        check_eq!(u64::from(region.held_blocks), tally.held_blocks, "held blocks of {slot:?}");
        check_eq!(
            region.is_wholly_free(),
            region.present_id().is_some() && tally.occupied_blocks == 0,
            "whether {slot:?} is wholly free"
        );
        self.validate_bins(slot, region, tally.free_blocks)?;
        let usable_units = if region.present_id().is_some() { region.usable_units } else { 0 };
        check_eq!(tally.occupied_units + tally.free_units, u64::from(usable_units), "bytes of {slot:?}");
        Ok(tally)
    }

    /// Blocks follow each other without gap or overlap, and no two free ones of a zone touch.
    fn validate_tiling(
        &self,
        slot: RegionSlot,
        region: &Region,
        uses: &mut [bool],
    ) -> Result<Tally, Violation> {
        let mut tally = Tally::default();
        let (mut offset_units, mut previous, mut before) = (0_u64, NIL, NodeState::Edge);
        for (index, node) in self.blocks_of(region) {
            check_eq!(std::mem::replace(&mut uses[index as usize], true), false, "node {index} seen before");
            check_eq!(u64::from(node.offset_units), offset_units, "offset of node {index}");
            check_eq!(node.previous, previous, "previous of node {index}");
            check_eq!(RegionSlot(node.slot), slot, "slot of node {index}");
            check_eq!(node.size_units > 0, true, "size of node {index} is positive");
            check_eq!((1..=MAX_GENERATION).contains(&node.generation), true, "generation of node {index}");
            match node.state {
                NodeState::FreeSmall | NodeState::FreeLarge => {
                    check_eq!(before != node.state, true, "free node {index} follows one of its zone");
                    tally.free_units += u64::from(node.size_units);
                    tally.free_blocks += 1;
                    tally.free_spans += u64::from(!before.is_gap());
                }
                // Its neighbours may be free: they coalesce when it is returned.
                NodeState::HeldSmall | NodeState::HeldLarge => {
                    tally.free_units += u64::from(node.size_units);
                    tally.held_blocks += 1;
                    tally.free_spans += u64::from(!before.is_gap());
                }
                NodeState::OccupiedSmall | NodeState::OccupiedLarge => {
                    check_eq!(u64::from(node.slack_bytes) <= bytes_of(1), true, "slack of node {index}");
                    tally.occupied_units += u64::from(node.size_units);
                    tally.slack_bytes += u64::from(node.slack_bytes);
                    tally.occupied_blocks += 1;
                }
                NodeState::Edge | NodeState::Spare => {
                    return Err(Violation(format!("node {index} of {slot:?} is {:?}", node.state)));
                }
            }
            before = node.state;
            offset_units += u64::from(node.size_units);
            previous = index;
        }
        Ok(tally)
    }

    /// Bins hold the region's free blocks, each in the bin of its size, and the bitmaps say so.
    fn validate_bins(&self, slot: RegionSlot, region: &Region, free_blocks: u64) -> Result<(), Violation> {
        let mut linked = 0;
        let mut row_used = [false; super::bins::ROWS];
        for (bin, _, column_bit) in region.bins.bits() {
            let mut previous = bin.first();
            for index in region.bins.list(&self.blocks, bin) {
                let node = self.blocks.node(index);
                check_eq!(node.state.is_free(), true, "binned node {index} is free");
                check_eq!(RegionSlot(node.slot), slot, "slot of binned node {index}");
                check_eq!(Bin::of(node.size_units, node.state.zone()), bin, "bin of node {index}");
                check_eq!(node.previous_free, previous, "previous in bin of node {index}");
                previous = index;
                linked += 1;
                if linked > free_blocks {
                    return Err(Violation(format!("{slot:?} has more binned blocks than free ones")));
                }
            }
            check_eq!(column_bit, previous != bin.first(), "column bit of {bin:?} of {slot:?}");
            row_used[bin.row()] |= column_bit;
        }
        for (bin, row_bit, _) in region.bins.bits() {
            check_eq!(row_bit, row_used[bin.row()], "row bit of {bin:?} of {slot:?}");
        }
        check_eq!(linked, free_blocks, "binned blocks of {slot:?}");
        Ok(())
    }

    /// The living counters equal what the regions add up to.
    fn validate_counters(&self, memory_type: MemoryType, sum: &Sum) -> Result<(), Violation> {
        let counters = self.counters.of(memory_type);
        let parked = self.counters.parked(memory_type);
        let beside = |sum: u64, parked: i64| sum.wrapping_sub(parked as u64);
        let requested_bytes = sum.occupied_bytes - sum.slack_bytes;
        let pairs = [
            (
                "allocated bytes",
                counters.allocated_bytes.stat(),
                beside(sum.occupied_bytes, parked.size_bytes),
            ),
            (
                "requested bytes",
                counters.requested_bytes.stat(),
                beside(requested_bytes, parked.requested_bytes),
            ),
            ("allocations", counters.allocation.stat(), beside(sum.occupied_blocks, parked.blocks)),
            ("reserved bytes", counters.reserved_bytes.stat(), sum.reserved_bytes),
            ("segments", counters.segment.stat(), sum.segments),
            (
                "inactive split bytes",
                counters.inactive_split_bytes(),
                (bytes_of(1) * sum.split.0).saturating_add_signed(parked.size_bytes),
            ),
            ("inactive splits", counters.inactive_split.stat(), sum.split.1),
        ];
        for (name, stat, recomputed) in pairs {
            check_eq!(stat.current, recomputed, "{memory_type} {name}");
            check_eq!(stat.peak >= stat.current, true, "peak of {memory_type} {name}");
        }
        Ok(())
    }
}

/// What the regions of one memory type add up to.
#[derive(Debug, Default)]
struct Sum {
    occupied_bytes: u64,
    slack_bytes: u64,
    occupied_blocks: u64,
    reserved_bytes: u64,
    segments: u64,
    split: (u64, u64),
}

impl Sum {
    fn add(&mut self, region: &Region, tally: &Tally) {
        self.occupied_bytes += tally.occupied_units * bytes_of(1);
        self.slack_bytes += tally.slack_bytes;
        self.occupied_blocks += tally.occupied_blocks;
        // A region on its way back is reserved until the device has it.
        if matches!(region.phase, Phase::Present(_) | Phase::Releasing(_)) {
            self.reserved_bytes += region.usable_bytes();
            self.segments += 1;
        }
        if tally.occupied_blocks > 0 {
            self.split.0 += tally.free_units;
            self.split.1 += tally.free_spans;
        }
    }
}
