//! A copy of all blocks, for memory snapshots.
//!
//! Taking one walks every block under the allocator mutex and allocates: it is for looking, not for hot paths.

use super::blocks::{NIL, Node};
use super::region::Region;
use super::{Arena, bytes_of};
use crate::directive::MemoryType;
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
}

impl Node {
    fn snapshot(&self, slack_bytes: u8) -> BlockSnapshot {
        let size_bytes = bytes_of(self.size_units);
        let occupied = self.state.is_occupied();
        let requested_bytes = if occupied { size_bytes - u64::from(slack_bytes) } else { 0 };
        BlockSnapshot { offset_bytes: bytes_of(self.offset_units), size_bytes, requested_bytes, occupied }
    }
}

impl Arena {
    /// All acquired regions with their blocks, by slot. `slack_of` says what an occupied block has beyond the bytes
    /// asked for; its node may not know the newest request that it serves.
    pub(crate) fn snapshot_with(&self, slack_of: impl Fn(u32) -> Option<u8>) -> Vec<RegionSnapshot> {
        let block = |(index, node): (u32, &Node)| node.snapshot(slack_of(index).unwrap_or(node.slack_bytes));
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
