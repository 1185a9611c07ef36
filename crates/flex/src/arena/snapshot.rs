//! A copy of all blocks, for memory snapshots.
//!
//! Taking one walks every block under the allocator mutex and allocates: it is for looking, not for hot paths.

use super::blocks::{NIL, Node};
use super::region::Region;
use super::{Arena, bytes_of};
use crate::directive::MemoryType;
use crate::history::BlockNote;
use crate::units::{DomainId, RegionId};

/// An acquired region and its blocks, in the order of their offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionSnapshot {
    /// The device's id of the region.
    pub region_id: RegionId,
    /// The domain it lies in.
    pub domain: DomainId,
    /// What it holds.
    pub memory_type: MemoryType,
    /// Its usable size in bytes.
    pub size_bytes: u64,
    /// Its blocks; they tile it.
    pub blocks: Vec<BlockSnapshot>,
}

/// One block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSnapshot {
    /// Start within the region, in bytes.
    pub offset_bytes: u64,
    /// Size in bytes, rounded up.
    pub size_bytes: u64,
    /// Bytes asked for; 0 for a free block.
    pub requested_bytes: u64,
    /// Whether the block is allocated.
    pub occupied: bool,
    /// Whether its owner has freed it: another thread is just giving it back.
    pub freeing: bool,
    /// Where in the program it was allocated, as the history's provider of sites has it; 0 if that is not known.
    pub site: u32,
    /// When, in nanoseconds since 1970; 0 if that is not known.
    pub allocated_ns: u64,
}

/// What is known of an occupied block beside its node.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BlockFacts {
    pub(crate) slack_bytes: u8,
    pub(crate) freeing: bool,
    pub(crate) note: BlockNote,
}

impl Node {
    fn snapshot(&self, facts: BlockFacts) -> BlockSnapshot {
        let size_bytes = bytes_of(self.size_units);
        let mut block = BlockSnapshot {
            offset_bytes: bytes_of(self.offset_units),
            size_bytes,
            requested_bytes: 0,
            occupied: self.state.is_occupied(),
            freeing: false,
            site: 0,
            allocated_ns: 0,
        };
        if block.occupied {
            block.requested_bytes = size_bytes - u64::from(facts.slack_bytes);
            block.freeing = facts.freeing;
            block.site = facts.note.site;
            block.allocated_ns = facts.note.time_ns;
        }
        block
    }
}

impl Arena {
    /// All acquired regions with their blocks, by slot. `facts_of` says what is known of an occupied block; its node
    /// may not know the newest request that it serves.
    pub(crate) fn snapshot_with(&self, facts_of: impl Fn(u32) -> Option<BlockFacts>) -> Vec<RegionSnapshot> {
        let of_node = |node: &Node| BlockFacts { slack_bytes: node.slack_bytes, ..BlockFacts::default() };
        let block =
            |(index, node): (u32, &Node)| node.snapshot(facts_of(index).unwrap_or_else(|| of_node(node)));
        let regions = self.regions.iter().filter_map(|region| {
            let region_id = region.present_id()?;
            Some(RegionSnapshot {
                region_id,
                domain: region.domain,
                memory_type: region.memory_type,
                size_bytes: region.usable_bytes(),
                blocks: self.blocks_of(region).map(block).collect(),
            })
        });
        regions.collect()
    }

    /// As [`snapshot_with`](Self::snapshot_with), of an arena that knows all there is.
    #[cfg(test)]
    pub(crate) fn snapshot(&self) -> Vec<RegionSnapshot> {
        self.snapshot_with(|_| None)
    }

    /// The blocks of a region with their indices, in the order of their offsets.
    pub(crate) fn blocks_of(&self, region: &Region) -> impl Iterator<Item = (u32, &Node)> {
        std::iter::successors(Some(region.first), |&index| Some(self.blocks.node(index).next))
            .take_while(|&index| index != NIL)
            .map(|index| (index, self.blocks.node(index)))
    }
}
