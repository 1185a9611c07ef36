//! One region: its phase, its blocks, and how they split and coalesce.
//!
//! Blocks tile an acquired region and no two free ones of one zone touch ([`super::zones`]). The block at offset 0
//! keeps its node for as long as the region is acquired: splits give the upper part a new node, and coalescing keeps
//! the lower node.
//!
//! `free_units + sum(occupied) == usable_units` while acquired; held blocks (see [`super::trim`]) count as free.
//! Protected by the allocator mutex.

use super::bins::Bins;
use super::blocks::{Blocks, NIL, Node, NodeState, Zone};
use super::zones::{End, Zones};
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

/// How a region is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Search {
    /// The request's own zone first.
    ByZone,
    /// Without zones, always from the same end of a gap, so that chunks of one size lie side by side.
    SideBySide,
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
    /// Gaps between occupied blocks: free blocks of different zones that touch are one.
    pub(crate) free_spans: u32,
    /// Free blocks that are held.
    pub(crate) held_blocks: u32,
    pub(crate) occupied_blocks: u32,
    pub(crate) zones: Zones,
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
            free_spans: 0,
            held_blocks: 0,
            occupied_blocks: 0,
            zones: Zones::of(usable_units),
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

    /// Units and number of the free spans beside occupied blocks; none if the region is wholly free.
    #[inline]
    pub(crate) fn inactive_split(&self) -> (u64, u64) {
        if self.occupied_blocks == 0 {
            (0, 0)
        } else {
            (u64::from(self.free_units), u64::from(self.free_spans))
        }
    }

    /// Starts the blocks: one free block over the whole region.
    pub(crate) fn open(&mut self, blocks: &mut Blocks, slot: RegionSlot, region_id: RegionId) {
        debug_assert_eq!(self.first, NIL);
        self.phase = Phase::Present(region_id);
        self.first = blocks.take(slot.0, 0, self.usable_units, Zone::Large);
        self.bins.link(blocks, self.first);
        self.free_units = self.usable_units;
        self.free_spans = 1;
    }

    /// Ends the blocks of a wholly free region, to give it back.
    pub(crate) fn close(&mut self, blocks: &mut Blocks, region_id: RegionId) {
        debug_assert_eq!((self.occupied_blocks, self.free_spans, self.held_blocks), (0, 1, 0));
        self.unite(blocks);
        self.phase = Phase::Releasing(region_id);
        self.bins.unlink(blocks, self.first);
        debug_assert_eq!(blocks.node(self.first).size_units, self.usable_units);
        blocks.put(self.first);
        self.first = NIL;
        self.free_units = 0;
        self.free_spans = 0;
    }

    /// Occupies a block of exactly `size_units`.
    #[inline]
    pub(crate) fn carve(
        &mut self,
        blocks: &mut Blocks,
        size_units: u32,
        slack_bytes: u8,
        search: Search,
    ) -> Option<u32> {
        let zone = self.zones.zone_of(size_units);
        let index = if search == Search::SideBySide {
            self.carve_from_gap(blocks, size_units, zone, End::Low)?
        } else if let Some(free) = self.bins.find(blocks, size_units, zone) {
            self.cut(blocks, free, size_units, self.zones.end_of(size_units))
        } else {
            self.carve_across_zones(blocks, size_units, zone)?
        };
        blocks.node_mut(index).slack_bytes = slack_bytes;
        self.free_units -= size_units;
        self.occupied_blocks += 1;
        self.free_spans = self.free_spans + spans_beside(blocks, index) - 1;
        Some(index)
    }

    /// Frees an occupied block, makes its handles stale and coalesces it with its neighbours.
    #[inline]
    pub(crate) fn give_back(&mut self, blocks: &mut Blocks, index: u32) {
        blocks.retire(index);
        debug_assert!(blocks.node(index).state.is_occupied());
        self.free_units += blocks.node(index).size_units;
        self.occupied_blocks -= 1;
        self.free_spans = self.free_spans + 1 - spans_beside(blocks, index);
        self.settle(blocks, index);
    }

    /// Puts a block that is in no bin among the free ones, coalesced with its neighbours. A small one that has become
    /// large enough goes back to the large zone.
    #[inline]
    pub(crate) fn settle(&mut self, blocks: &mut Blocks, index: u32) {
        let united = self.coalesce(blocks, index);
        let node = blocks.node(united);
        if node.state.zone() == Zone::Small && node.size_units >= self.zones.release_units {
            self.relabel_free(blocks, united);
        } else {
            self.bins.link(blocks, united);
        }
    }

    /// The largest gap between occupied blocks, in units.
    pub(crate) fn largest_free_units(&self, blocks: &Blocks) -> u32 {
        if self.held_blocks > 0 {
            let starts = std::iter::successors(Some(self.first), |&index| Some(blocks.node(index).next));
            let starts = starts.take_while(|&index| index != NIL);
            return starts.map(|index| gap_from(blocks, index)).max().unwrap_or(0);
        }
        // A gap is one large block, or begins with a small one, or with a large one before a small one.
        let small = self.bins.blocks(blocks, Zone::Small).map(|index| {
            let previous = blocks.node(index).previous;
            gap_from(blocks, if blocks.node(previous).state.is_free() { previous } else { index })
        });
        small.max().unwrap_or(0).max(self.bins.largest_units(blocks, Zone::Large))
    }

    /// What a request finds that its own zone cannot serve.
    #[cold]
    fn carve_across_zones(&mut self, blocks: &mut Blocks, size_units: u32, zone: Zone) -> Option<u32> {
        if zone == Zone::Small {
            if let Some(free) = self.bins.find(blocks, self.zones.extent_units, Zone::Large) {
                return Some(self.carve_from_extent(blocks, free, size_units));
            }
            if let Some(free) = self.bins.find(blocks, size_units, Zone::Large) {
                return Some(self.cut_for(blocks, free, size_units, zone, End::Low));
            }
        }
        let end = if zone == Zone::Small { End::Low } else { self.zones.end_of(size_units) };
        self.carve_from_gap(blocks, size_units, zone, end)
    }

    /// Makes every gap one block, and takes one that is large enough.
    #[cold]
    fn carve_from_gap(&mut self, blocks: &mut Blocks, size_units: u32, zone: Zone, end: End) -> Option<u32> {
        self.unite(blocks);
        let free = self.bins.find(blocks, size_units, Zone::Large)?;
        Some(self.cut_for(blocks, free, size_units, zone, end))
    }

    /// Gives the small zone an extent of a large free block, and occupies a part of that.
    fn carve_from_extent(&mut self, blocks: &mut Blocks, free: u32, size_units: u32) -> u32 {
        let extent = self.cut_for(blocks, free, self.zones.extent_units, Zone::Small, End::Low);
        // Not `settle`: it might go straight back.
        let united = self.coalesce(blocks, extent);
        self.bins.link(blocks, united);
        let free =
            self.bins.find(blocks, size_units, Zone::Small).expect("an extent holds any small request");
        self.cut(blocks, free, size_units, End::High)
    }

    /// Cuts a block of a zone from a large free one.
    fn cut_for(&mut self, blocks: &mut Blocks, free: u32, size_units: u32, zone: Zone, end: End) -> u32 {
        let index = self.cut(blocks, free, size_units, end);
        blocks.node_mut(index).state = NodeState::occupied(zone);
        index
    }

    /// Makes all small free blocks large ones, coalesced: every gap is one block then, but for held ones.
    #[cold]
    fn unite(&mut self, blocks: &mut Blocks) {
        while let Some(index) = self.bins.any(Zone::Small) {
            self.bins.unlink(blocks, index);
            self.relabel_free(blocks, index);
        }
    }

    /// Makes a free small block that is in no bin a large one.
    #[cold]
    fn relabel_free(&mut self, blocks: &mut Blocks, index: u32) {
        blocks.node_mut(index).state = NodeState::occupied(Zone::Large);
        let united = self.coalesce(blocks, index);
        self.bins.link(blocks, united);
    }

    /// Merges a block that is in no bin with its free neighbours of the same zone. The result is in no bin.
    #[inline]
    fn coalesce(&mut self, blocks: &mut Blocks, index: u32) -> u32 {
        let Node { previous, next, state, .. } = *blocks.node(index);
        let free = NodeState::free(state.zone());
        if blocks.node(next).state == free {
            self.bins.unlink(blocks, next);
            Region::join(blocks, index, next);
        }
        if blocks.node(previous).state == free {
            // Its size is about to change, and with it its bin.
            self.bins.unlink(blocks, previous);
            Region::join(blocks, previous, index);
            return previous;
        }
        index
    }

    /// Takes a free block out of its bin and cuts `size_units` off one end; the rest stays free. Returns the piece,
    /// occupied, in the zone of the block.
    #[inline]
    fn cut(&mut self, blocks: &mut Blocks, free: u32, size_units: u32, end: End) -> u32 {
        self.bins.unlink(blocks, free);
        let rest_units = blocks.node(free).size_units - size_units;
        if rest_units == 0 {
            return free;
        }
        let (piece, rest) = match end {
            End::Low => (free, Region::split(blocks, free, size_units)),
            End::High => (Region::split(blocks, free, rest_units), free),
        };
        self.bins.link(blocks, rest);
        piece
    }

    /// Gives the part of a block above `lower_units` a node of its own and returns that; both are in no bin.
    #[inline]
    fn split(blocks: &mut Blocks, lower: u32, lower_units: u32) -> u32 {
        let Node { slot, offset_units, size_units, next, state, .. } = *blocks.node(lower);
        let upper = blocks.take(slot, offset_units + lower_units, size_units - lower_units, state.zone());
        let node = blocks.node_mut(upper);
        (node.previous, node.next) = (lower, next);
        blocks.node_mut(next).previous = upper;
        let node = blocks.node_mut(lower);
        (node.size_units, node.next) = (lower_units, upper);
        upper
    }

    /// Extends the lower of two neighbours over the upper one; both are in no bin.
    #[inline]
    fn join(blocks: &mut Blocks, lower: u32, upper: u32) {
        let Node { size_units, next, .. } = *blocks.node(upper);
        blocks.node_mut(lower).size_units += size_units;
        blocks.node_mut(lower).next = next;
        blocks.node_mut(next).previous = lower;
        blocks.put(upper);
    }
}

/// How many neighbours of an occupied block are free or held: the gaps that it parts.
#[inline]
fn spans_beside(blocks: &Blocks, index: u32) -> u32 {
    let node = blocks.node(index);
    u32::from(blocks.node(node.previous).state.is_gap()) + u32::from(blocks.node(node.next).state.is_gap())
}

/// The units of a block and those that follow it, up to the first occupied one.
fn gap_from(blocks: &Blocks, start: u32) -> u32 {
    let gap = std::iter::successors(Some(start), |&index| Some(blocks.node(index).next));
    let gap = gap.map(|index| blocks.node(index)).take_while(|node| node.state.is_gap());
    gap.map(|node| node.size_units).sum()
}
