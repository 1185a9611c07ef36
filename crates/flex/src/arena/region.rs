//! One region: its phase, its blocks, and how they split and coalesce.
//!
//! Blocks tile an acquired region and no two free ones of one zone touch ([`super::zones`]). The block at offset 0
//! keeps its node for as long as the region is acquired: splits give the upper part a new node, and coalescing keeps
//! the lower node.
//!
//! `free_units + sum(occupied) == usable_units` while acquired; held blocks (see [`super::trim`]) count as free.
//! Protected by the allocator mutex.

use super::bins::{Bin, Bins};
use super::blocks::{BlockHandle, Blocks, NIL, Node, NodeState, Table, Zone};
use super::request::Placed;
use super::zones::{End, Zones};
use crate::address::{Chunk, VirtualAddress};
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

/// A block that has just been occupied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Carved {
    pub(crate) index: u32,
    pub(crate) generation: u32,
    pub(crate) offset_units: u32,
    /// How many gaps there are in place of the one it was cut from: what is left of that on either side.
    pub(crate) gaps_beside: u32,
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
    /// Free blocks that are held.
    pub(crate) held_blocks: u32,
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
            held_blocks: 0,
            zones: Zones::of(usable_units),
            bins: Bins::new(),
        }
    }

    /// Usable size in bytes.
    pub(crate) fn usable_bytes(&self) -> u64 {
        u64::from(self.usable_units) * ALIGNMENT_BYTES
    }

    /// The device's id, while acquired.
    #[inline]
    pub(crate) fn present_id(&self) -> Option<RegionId> {
        match self.phase {
            Phase::Present(region_id) => Some(region_id),
            _ => None,
        }
    }

    /// A block as its owner sees it, while the region is acquired.
    #[inline]
    pub(crate) fn chunk_at(&self, offset_units: u32, size_units: u32) -> Option<Chunk> {
        let region_id = self.present_id()?;
        let offset_bytes = u64::from(offset_units) * ALIGNMENT_BYTES;
        Some(Chunk {
            address: VirtualAddress { region_id, offset_bytes },
            size_bytes: u64::from(size_units) * ALIGNMENT_BYTES,
            domain: self.domain,
        })
    }

    /// A block that has just been carved, with its handle.
    #[inline]
    pub(crate) fn placed(&self, carved: &Carved, size_units: u32) -> Option<Placed> {
        let handle = BlockHandle { index: carved.index, generation: carved.generation };
        Some(Placed { handle, chunk: self.chunk_at(carved.offset_units, size_units)? })
    }

    /// Whether the region is acquired and has no occupied block.
    #[inline]
    pub(crate) fn is_wholly_free(&self) -> bool {
        self.free_units == self.usable_units
    }

    /// Starts the blocks: one free block over the whole region.
    pub(crate) fn open(&mut self, blocks: &mut Blocks, slot: RegionSlot, region_id: RegionId) {
        debug_assert_eq!(self.first, NIL);
        self.phase = Phase::Present(region_id);
        let state = NodeState::occupied(Zone::Large);
        blocks.keep_spare();
        let whole = Node { slot: slot.0, size_units: self.usable_units, state, ..Node::EDGE };
        (self.first, _) = blocks.table().take(whole);
        self.bins.link(blocks, self.first);
        self.free_units = self.usable_units;
    }

    /// Ends the blocks of a wholly free region, to give it back.
    pub(crate) fn close(&mut self, blocks: &mut Blocks, region_id: RegionId) {
        debug_assert!(self.is_wholly_free() && self.held_blocks == 0);
        self.unite(blocks);
        self.phase = Phase::Releasing(region_id);
        self.bins.unlink(blocks, self.first);
        debug_assert_eq!(blocks.node(self.first).size_units, self.usable_units);
        blocks.table().put(self.first);
        self.first = NIL;
        self.free_units = 0;
    }

    /// Occupies a block of exactly `size_units`.
    #[inline(always)]
    pub(crate) fn carve(&mut self, blocks: &mut Blocks, size_units: u32, slack_bytes: u8) -> Option<Carved> {
        blocks.keep_spare();
        let mut table = blocks.table();
        let zone = self.zones.zone_of(size_units);
        let carved = match self.bins.find(table.nodes(), size_units, zone) {
            NIL => self.carve_after_all(blocks, size_units, slack_bytes)?,
            free => {
                let wanted = Cut { size_units, slack_bytes, end: self.zones.end_of(size_units) };
                self.cut(&mut table, free, zone, wanted)
            }
        };
        self.free_units -= size_units;
        Some(carved)
    }

    /// As [`carve`](Self::carve), without zones and always from the same end of a gap, so that chunks of one size lie
    /// side by side.
    #[cold]
    pub(crate) fn carve_side_by_side(
        &mut self,
        blocks: &mut Blocks,
        size_units: u32,
        slack_bytes: u8,
    ) -> Option<Carved> {
        let zone = self.zones.zone_of(size_units);
        let carved = self.carve_from_gap(blocks, zone, Cut { size_units, slack_bytes, end: End::Low })?;
        self.free_units -= size_units;
        Some(carved)
    }

    /// Frees an occupied block, makes its handles stale and coalesces it with its neighbours. Returns how many gaps
    /// there were beside it; they are one now.
    #[inline(always)]
    pub(crate) fn give_back(&mut self, blocks: &mut Blocks, index: u32) -> u32 {
        debug_assert!(blocks.node(index).state.is_occupied());
        blocks.table().retire(index);
        self.free_units += blocks.node(index).size_units;
        self.settle(blocks, index)
    }

    /// Puts a block that is in no bin among the free ones, coalesced with its neighbours. A small one that has become
    /// large enough goes back to the large zone. Returns how many gaps there were beside it.
    #[inline(always)]
    pub(crate) fn settle(&mut self, blocks: &mut Blocks, index: u32) -> u32 {
        let mut table = blocks.table();
        let state = table.node(index).state;
        let united = self.coalesce(&mut table, index);
        if self.zones.releases(united.size_units, state.zone()) {
            self.relabel_free(blocks, united.index);
        } else {
            table.node_mut(united.index).state = state.freed();
            self.bins.insert(&mut table, united.index, Bin::of(united.size_units, state.zone()));
        }
        united.gaps_beside
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

    /// What a request finds that no bin above its own serves.
    #[cold]
    #[inline(never)]
    fn carve_after_all(&mut self, blocks: &mut Blocks, size_units: u32, slack_bytes: u8) -> Option<Carved> {
        if self.free_units < size_units {
            return None;
        }
        let zone = self.zones.zone_of(size_units);
        let mut wanted = Cut { size_units, slack_bytes, end: self.zones.end_of(size_units) };
        if let Some(free) = self.bins.search(blocks, wanted.size_units, zone) {
            return Some(self.cut_for(blocks, free, zone, wanted));
        }
        if zone == Zone::Small {
            if let Some(free) = self.find(blocks, self.zones.extent_units, Zone::Large) {
                return Some(self.carve_from_extent(blocks, free, wanted));
            }
            wanted.end = End::Low;
            if let Some(free) = self.find(blocks, wanted.size_units, Zone::Large) {
                return Some(self.cut_for(blocks, free, zone, wanted));
            }
        }
        self.carve_from_gap(blocks, zone, wanted)
    }

    /// Makes every gap one block, and takes one that is large enough.
    #[cold]
    fn carve_from_gap(&mut self, blocks: &mut Blocks, zone: Zone, wanted: Cut) -> Option<Carved> {
        self.unite(blocks);
        let free = self.find(blocks, wanted.size_units, Zone::Large)?;
        Some(self.cut_for(blocks, free, zone, wanted))
    }

    /// Gives the small zone an extent of a large free block, and occupies a part of that.
    fn carve_from_extent(&mut self, blocks: &mut Blocks, free: u32, wanted: Cut) -> Carved {
        let extent = Cut { size_units: self.zones.extent_units, slack_bytes: 0, end: End::Low };
        let extent = self.cut_for(blocks, free, Zone::Small, extent);
        // Not `settle`: it might go straight back.
        let united = self.coalesce(&mut blocks.table(), extent.index);
        self.bins.link(blocks, united.index);
        let free =
            self.find(blocks, wanted.size_units, Zone::Small).expect("an extent holds any small request");
        self.cut_for(blocks, free, Zone::Small, Cut { end: End::High, ..wanted })
    }

    /// Any free block of a zone that is large enough.
    #[inline(never)]
    fn find(&self, blocks: &mut Blocks, size_units: u32, zone: Zone) -> Option<u32> {
        match self.bins.find(blocks.table().nodes(), size_units, zone) {
            NIL => self.bins.search(blocks, size_units, zone),
            free => Some(free),
        }
    }

    /// Cuts a block of a zone from a free one of either.
    #[cold]
    #[inline(never)]
    fn cut_for(&mut self, blocks: &mut Blocks, free: u32, zone: Zone, wanted: Cut) -> Carved {
        blocks.keep_spare();
        let zone_of_free = blocks.node(free).state.zone();
        let carved = self.cut(&mut blocks.table(), free, zone_of_free, wanted);
        blocks.node_mut(carved.index).state = NodeState::occupied(zone);
        carved
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
    #[inline(never)]
    fn relabel_free(&mut self, blocks: &mut Blocks, index: u32) {
        blocks.node_mut(index).state = NodeState::occupied(Zone::Large);
        let united = self.coalesce(&mut blocks.table(), index);
        self.bins.link(blocks, united.index);
    }

    /// Merges a block that is in no bin with its free neighbours of its zone. The result is in no bin.
    #[inline(always)]
    fn coalesce(&mut self, table: &mut Table<'_>, index: u32) -> United {
        let Node { previous, next, size_units, state, .. } = *table.node(index);
        let free = state.freed();
        let (before, after) = (table.node(previous).state, table.node(next).state);
        let gaps_beside = before.gaps() + after.gaps();
        let mut united = United { index, size_units, gaps_beside };
        let mut beyond = next;
        if after == free {
            self.bins.remove(table, next);
            united.size_units += table.node(next).size_units;
            beyond = table.node(next).next;
            table.put(next);
        }
        if before == free {
            self.bins.remove(table, previous);
            united.size_units += table.node(previous).size_units;
            united.index = previous;
            table.put(index);
        }
        table.node_mut(beyond).previous = united.index;
        let node = table.node_mut(united.index);
        (node.size_units, node.next) = (united.size_units, beyond);
        united
    }

    /// Occupies one end of a free block of a zone; the rest stays free. Needs a spare node.
    #[inline(always)]
    fn cut(&mut self, table: &mut Table<'_>, free: u32, zone: Zone, wanted: Cut) -> Carved {
        let Cut { size_units, slack_bytes, end } = wanted;
        let state = NodeState::occupied(zone);
        // Fields are read where they are needed: there are more of them than registers.
        let rest_units = table.node(free).size_units - size_units;
        if rest_units == 0 {
            self.bins.remove(table, free);
            table.node_mut(free).occupy(state, slack_bytes);
            let Node { offset_units, previous, next, generation, .. } = *table.node(free);
            let gaps_beside = gaps_at(table, previous) + gaps_at(table, next);
            return Carved { index: free, generation, offset_units, gaps_beside };
        }
        let bin = Bin::of(rest_units, zone);
        match end {
            End::High => {
                // The rest keeps the node. It is the first of its bin already if that is the one it was found in.
                if table.node(free).previous_free != bin.first() {
                    self.bins.remove(table, free);
                    self.bins.insert(table, free, bin);
                }
                let lower = *table.node(free);
                let offset_units = lower.offset_units + rest_units;
                let upper = Node { offset_units, size_units, slack_bytes, state, ..lower };
                let (index, generation) = Region::split(table, free, rest_units, upper);
                Carved { index, generation, offset_units, gaps_beside: 1 + gaps_at(table, lower.next) }
            }
            End::Low => {
                self.bins.remove(table, free);
                let lower = *table.node(free);
                let Node { offset_units, previous, generation, .. } = lower;
                let upper = Node { offset_units: offset_units + size_units, size_units: rest_units, ..lower };
                let (rest, _) = Region::split(table, free, size_units, upper);
                self.bins.insert(table, rest, bin);
                table.node_mut(free).occupy(state, slack_bytes);
                Carved { index: free, generation, offset_units, gaps_beside: 1 + gaps_at(table, previous) }
            }
        }
    }

    /// Cuts a block down to `lower_units` and gives what is above a node of its own: `upper`, but for its links.
    /// Returns its index and generation.
    #[inline(always)]
    fn split(table: &mut Table<'_>, lower: u32, lower_units: u32, upper: Node) -> (u32, u32) {
        let next = upper.next;
        let (index, generation) = table.take(Node { previous: lower, ..upper });
        table.node_mut(next).previous = index;
        let node = table.node_mut(lower);
        (node.size_units, node.next) = (lower_units, index);
        (index, generation)
    }
}

/// What is cut off a free block, and from which end.
#[derive(Debug, Clone, Copy)]
struct Cut {
    size_units: u32,
    slack_bytes: u8,
    end: End,
}

/// A block that is about to be free, with what it was coalesced with.
struct United {
    index: u32,
    size_units: u32,
    gaps_beside: u32,
}

/// 1 if a neighbour is free or held, else 0.
#[inline(always)]
fn gaps_at(table: &Table<'_>, neighbour: u32) -> u32 {
    table.node(neighbour).state.gaps()
}

/// The units of a block and those that follow it, up to the first occupied one.
fn gap_from(blocks: &Blocks, start: u32) -> u32 {
    let gap = std::iter::successors(Some(start), |&index| Some(blocks.node(index).next));
    let gap = gap.map(|index| blocks.node(index)).take_while(|node| node.state.is_gap());
    gap.map(|node| node.size_units).sum()
}
