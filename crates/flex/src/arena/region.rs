//! One region: its phase, its blocks, and how they split and coalesce.
//!
//! Blocks tile an acquired region and no two free ones touch. The block at offset 0 keeps its node for as long as
//! the region is acquired: splits give the upper part a new node, and coalescing keeps the lower node.
//!
//! `free_units + sum(occupied) == usable_units` while acquired. Protected by the allocator mutex.

use super::bins::Bins;
use super::blocks::{Blocks, NIL, Node, NodeState};
use crate::directive::MemoryType;
use crate::topology::RegionLayout;
use crate::units::{ALIGNMENT_BYTES, DomainId, RegionId};

/// Which acquired region is tried first; ties go to the lower slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RegionOrder {
    /// The one with the most free bytes: spreads the load over regions.
    #[default]
    MostFree,
    /// The one with the least free bytes: packs into few regions, so that others become wholly free.
    LeastFree,
}

impl RegionOrder {
    /// Regions with a smaller key are tried first.
    #[inline]
    pub(crate) fn key(self, free_units: u32) -> u32 {
        match self {
            RegionOrder::MostFree => u32::MAX - free_units,
            RegionOrder::LeastFree => free_units,
        }
    }
}

/// A region's place in the topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RegionSlot(pub(crate) u16);

/// Where a region is on its way from the device and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not acquired.
    Absent,
    /// Some thread asks the device for it.
    Acquiring,
    /// Acquired; it has blocks.
    Present(RegionId),
    /// Some thread gives it back; it has no blocks.
    Releasing(RegionId),
}

/// One region.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) domain: DomainId,
    pub(crate) memory_type: MemoryType,
    pub(crate) usable_units: u32,
    pub(crate) phase: Phase,
    /// The block at offset 0, or `NIL` unless present.
    pub(crate) first: u32,
    pub(crate) free_units: u32,
    pub(crate) free_blocks: u32,
    pub(crate) occupied_blocks: u32,
    pub(crate) bins: Bins,
}

impl Region {
    /// A region not acquired yet. The layout has been checked by the topology.
    pub(crate) fn new(layout: &RegionLayout) -> Region {
        let usable_units = u32::try_from(layout.usable_bytes() / ALIGNMENT_BYTES)
            .expect("the topology limits regions to 2^32 - 1 units");
        Region {
            domain: layout.domain,
            memory_type: layout.memory_type,
            usable_units,
            phase: Phase::Absent,
            first: NIL,
            free_units: 0,
            free_blocks: 0,
            occupied_blocks: 0,
            bins: Bins::new(),
        }
    }

    /// Usable size in bytes.
    pub(crate) fn usable_bytes(&self) -> u64 {
        u64::from(self.usable_units) * ALIGNMENT_BYTES
    }

    /// The device's id, while acquired.
    pub(crate) fn present_id(&self) -> Option<RegionId> {
        match self.phase {
            Phase::Present(region_id) => Some(region_id),
            _ => None,
        }
    }

    /// Units and number of the free blocks that neighbour occupied ones somewhere in the region; none if the
    /// region is wholly free.
    #[inline]
    pub(crate) fn inactive_split(&self) -> (u64, u64) {
        if self.occupied_blocks == 0 {
            (0, 0)
        } else {
            (u64::from(self.free_units), u64::from(self.free_blocks))
        }
    }

    /// Starts the blocks: one free block over the whole region.
    pub(crate) fn open(&mut self, blocks: &mut Blocks, slot: RegionSlot, region_id: RegionId) {
        debug_assert_eq!(self.first, NIL);
        self.phase = Phase::Present(region_id);
        self.first = blocks.take(slot.0, 0, self.usable_units);
        self.bins.link(blocks, self.first);
        self.free_units = self.usable_units;
        self.free_blocks = 1;
    }

    /// Ends the blocks of a wholly free region, to give it back.
    pub(crate) fn close(&mut self, blocks: &mut Blocks, region_id: RegionId) {
        debug_assert_eq!((self.occupied_blocks, self.free_blocks), (0, 1));
        self.phase = Phase::Releasing(region_id);
        self.bins.unlink(blocks, self.first);
        blocks.put(self.first);
        self.first = NIL;
        self.free_units = 0;
        self.free_blocks = 0;
    }

    /// Occupies a block of exactly `size_units`, from the low end of a free one.
    pub(crate) fn carve(&mut self, blocks: &mut Blocks, size_units: u32, slack_bytes: u8) -> Option<u32> {
        let index = self.bins.find(blocks, size_units)?;
        self.bins.unlink(blocks, index);
        self.free_blocks -= 1;
        let rest_units = blocks.node(index).size_units - size_units;
        if rest_units > 0 {
            self.split(blocks, index, size_units, rest_units);
        }
        blocks.node_mut(index).slack_bytes = slack_bytes;
        self.free_units -= size_units;
        self.occupied_blocks += 1;
        Some(index)
    }

    /// Frees an occupied block, makes its handles stale and coalesces it with its neighbours.
    pub(crate) fn give_back(&mut self, blocks: &mut Blocks, index: u32) {
        blocks.retire(index);
        let node = *blocks.node(index);
        debug_assert_eq!(node.state, NodeState::Occupied);
        self.free_units += node.size_units;
        self.occupied_blocks -= 1;
        if blocks.node(node.next).state == NodeState::Free {
            self.absorb_next(blocks, index);
        }
        let mut survivor = index;
        if blocks.node(node.previous).state == NodeState::Free {
            survivor = node.previous;
            // Its size is about to change, and with it its bin.
            self.bins.unlink(blocks, survivor);
            self.free_blocks -= 1;
            Region::join(blocks, survivor, index);
        }
        self.bins.link(blocks, survivor);
        self.free_blocks += 1;
    }

    /// Gives the upper part of a block taken out of its bin a node of its own and frees it.
    fn split(&mut self, blocks: &mut Blocks, index: u32, size_units: u32, rest_units: u32) {
        let node = *blocks.node(index);
        let rest = blocks.take(node.slot, node.offset_units + size_units, rest_units);
        blocks.node_mut(index).size_units = size_units;
        blocks.node_mut(index).next = rest;
        blocks.node_mut(rest).previous = index;
        blocks.node_mut(rest).next = node.next;
        blocks.node_mut(node.next).previous = rest;
        self.bins.link(blocks, rest);
        self.free_blocks += 1;
    }

    /// Merges the free block that follows into this one.
    fn absorb_next(&mut self, blocks: &mut Blocks, index: u32) {
        let next = blocks.node(index).next;
        self.bins.unlink(blocks, next);
        self.free_blocks -= 1;
        Region::join(blocks, index, next);
    }

    /// Extends the lower of two neighbours over the upper one; both are in no bin.
    fn join(blocks: &mut Blocks, lower: u32, upper: u32) {
        let Node { size_units, next, .. } = *blocks.node(upper);
        blocks.node_mut(lower).size_units += size_units;
        blocks.node_mut(lower).next = next;
        blocks.node_mut(next).previous = lower;
        blocks.put(upper);
    }
}
