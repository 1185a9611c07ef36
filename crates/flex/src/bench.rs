//! The arena without its lock, for `benches/allocator`. No part of the public interface.
//!
//! Two cuts through the allocator, one region each: [`OffsetArena`] is all that runs under the allocator mutex for a
//! request, statistics included; [`OffsetRegion`] is the search and the bookkeeping of blocks alone.
//!
//! Single-threaded; no lock.

use crate::arena::blocks::Blocks;
use crate::arena::region::Region;
use crate::arena::{Arena, BlockHandle, RegionOrder, RegionSlot, Unplaced};
use crate::directive::{AllocationDirective, MemoryType};
use crate::error::FlexError;
use crate::topology::{RegionLayout, Topology};
use crate::units::{ALIGNMENT_BYTES, DomainId, RegionId};

/// An arena of one acquired region.
#[derive(Debug)]
pub struct OffsetArena {
    arena: Arena,
    directive: AllocationDirective,
}

impl OffsetArena {
    /// An arena of one empty region.
    ///
    /// # Errors
    ///
    /// [`FlexError::RegionSetup`] for a capacity that no region can have.
    pub fn new(capacity_bytes: u64) -> Result<OffsetArena, FlexError> {
        let topology = Topology::custom(vec![layout(capacity_bytes)])?;
        let mut arena = Arena::new(&topology, RegionOrder::default());
        let directive = AllocationDirective::default();
        let request = arena.check(1, &directive)?;
        let Err(Unplaced::NeedsRegion(slot)) = arena.place(&request) else {
            unreachable!("the only region is not acquired yet")
        };
        arena.region_acquired(slot, RegionId(0));
        Ok(OffsetArena { arena, directive })
    }

    /// Allocates, and returns the handle and the offset in bytes; `None` if there is no room.
    #[inline]
    pub fn allocate(&mut self, bytes: u64) -> Option<(BlockHandle, u64)> {
        match self.arena.place_at_once(bytes, &self.directive) {
            Some(placed) => Some((placed.handle, placed.chunk.address.offset_bytes)),
            None => self.allocate_after_all(bytes),
        }
    }

    #[cold]
    fn allocate_after_all(&mut self, bytes: u64) -> Option<(BlockHandle, u64)> {
        let request = self.arena.check(bytes, &self.directive).ok()?;
        let placed = self.arena.place(&request).ok()?.pop()?;
        Some((placed.handle, placed.chunk.address.offset_bytes))
    }

    /// Frees a block.
    ///
    /// # Errors
    ///
    /// [`FlexError::UnknownAllocation`] for a stale handle.
    #[inline]
    pub fn free(&mut self, handle: BlockHandle) -> Result<(), FlexError> {
        self.arena.release(handle).map(drop)
    }
}

/// The blocks of one region: no requests, no statistics.
#[derive(Debug)]
pub struct OffsetRegion {
    blocks: Blocks,
    region: Region,
}

impl OffsetRegion {
    /// An empty region of at most 2^32 - 1 units.
    ///
    /// # Panics
    ///
    /// If the capacity is larger.
    pub fn new(capacity_bytes: u64) -> OffsetRegion {
        let (mut blocks, mut region) = (Blocks::new(), Region::new(&layout(capacity_bytes)));
        region.open(&mut blocks, RegionSlot(0), RegionId(0));
        OffsetRegion { blocks, region }
    }

    /// Allocates, and returns the handle and the offset in bytes; `None` if there is no room.
    #[inline]
    pub fn allocate(&mut self, bytes: u64) -> Option<(BlockHandle, u64)> {
        let size_units = u32::try_from(bytes.div_ceil(ALIGNMENT_BYTES)).ok()?;
        let carved = self.region.carve(&mut self.blocks, size_units, 0)?;
        let handle = BlockHandle { index: carved.index, generation: carved.generation };
        Some((handle, u64::from(carved.offset_units) * ALIGNMENT_BYTES))
    }

    /// Frees a block; `false` for a stale handle.
    #[inline]
    pub fn free(&mut self, handle: BlockHandle) -> bool {
        let live = self.blocks.occupied(handle).is_some();
        if live {
            self.region.give_back(&mut self.blocks, handle.index);
        }
        live
    }
}

fn layout(size_bytes: u64) -> RegionLayout {
    RegionLayout { domain: DomainId(0), memory_type: MemoryType::Tensor, size_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_place_alike_and_refuse_stale_handles() {
        let mut arena = OffsetArena::new(1 << 20).unwrap();
        let mut region = OffsetRegion::new(1 << 20);
        let (first, second) = (arena.allocate(1000).unwrap(), region.allocate(1000).unwrap());
        assert_eq!(first.1, second.1);
        assert!(arena.allocate(1 << 20).is_none() && region.allocate(1 << 20).is_none());
        arena.free(first.0).unwrap();
        assert!(region.free(second.0));
        assert!(arena.free(first.0).is_err());
        assert!(!region.free(second.0));
        assert!(arena.allocate(1 << 20).is_some() && region.allocate(1 << 20).is_some());
    }
}
