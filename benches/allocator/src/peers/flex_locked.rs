//! The whole of flex, as programs use it: `FlexAllocator` on a device that has no memory.

use std::sync::Arc;

use flex::{
    AddressesOnly, AllocationDirective, AllocatorOptions, BlockHandle, DomainId, FlexAllocator, MemoryType,
    RegionLayout, Topology,
};

use super::{Peer, UNIT_BYTES};

/// The allocator with one region, with its lock, pending frees and statistics.
pub(crate) struct FlexLocked {
    allocator: FlexAllocator,
    directive: AllocationDirective,
}

impl FlexLocked {
    /// The allocator itself, for more than one thread.
    pub(crate) fn allocator(&self) -> &FlexAllocator {
        &self.allocator
    }
}

impl Peer for FlexLocked {
    const NAME: &'static str = "FlexAllocator (locked)";
    type Handle = (BlockHandle, u64);

    fn new(capacity_units: u64) -> Self {
        let size_bytes = capacity_units * UNIT_BYTES;
        let layout = RegionLayout { domain: DomainId(0), memory_type: MemoryType::Tensor, size_bytes };
        let topology = Topology::custom(vec![layout]).expect("a capacity that a region can have");
        let device = Arc::new(AddressesOnly::default());
        let allocator = FlexAllocator::new(device, &topology, AllocatorOptions::default());
        FlexLocked {
            allocator: allocator.expect("a valid topology"),
            directive: AllocationDirective::default(),
        }
    }

    #[inline]
    fn allocate(&mut self, size_units: u32) -> Option<Self::Handle> {
        let placed = self.allocator.allocate_block(u64::from(size_units) * UNIT_BYTES, &self.directive);
        placed.ok().map(|(handle, chunk)| (handle, chunk.address.offset_bytes))
    }

    #[inline]
    fn free(&mut self, handle: Self::Handle) {
        self.allocator.free_block(handle.0).expect("a live block");
    }

    fn offset_units(&self, handle: &Self::Handle) -> u64 {
        handle.1 / UNIT_BYTES
    }
}
