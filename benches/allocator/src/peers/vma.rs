//! `VirtualBlock` of the Vulkan Memory Allocator, in two of its strategies. It needs no Vulkan.

use vk_mem::{
    VirtualAllocation, VirtualAllocationCreateFlags, VirtualAllocationCreateInfo, VirtualBlock,
    VirtualBlockCreateFlags, VirtualBlockCreateInfo,
};

use super::Peer;

/// The balanced strategy.
pub(crate) struct VmaDefault(Block);
/// The strategy that looks for the tightest fit.
pub(crate) struct VmaMinMemory(Block);

impl Peer for VmaDefault {
    const NAME: &'static str = "VMA default";
    type Handle = (VirtualAllocation, u64);

    fn new(capacity_units: u64) -> Self {
        VmaDefault(Block::new(capacity_units))
    }

    fn allocate(&mut self, size_units: u32) -> Option<Self::Handle> {
        self.0.allocate(size_units, VirtualAllocationCreateFlags::empty())
    }

    fn free(&mut self, handle: Self::Handle) {
        self.0.free(handle);
    }

    fn offset_units(&self, handle: &Self::Handle) -> u64 {
        handle.1
    }
}

impl Peer for VmaMinMemory {
    const NAME: &'static str = "VMA min-memory";
    type Handle = (VirtualAllocation, u64);

    fn new(capacity_units: u64) -> Self {
        VmaMinMemory(Block::new(capacity_units))
    }

    fn allocate(&mut self, size_units: u32) -> Option<Self::Handle> {
        let strategy = VirtualAllocationCreateFlags::VMA_VIRTUAL_ALLOCATION_CREATE_STRATEGY_MIN_MEMORY_BIT;
        self.0.allocate(size_units, strategy)
    }

    fn free(&mut self, handle: Self::Handle) {
        self.0.free(handle);
    }

    fn offset_units(&self, handle: &Self::Handle) -> u64 {
        handle.1
    }
}

/// One block of virtual memory, in units.
struct Block(VirtualBlock);

impl Block {
    fn new(capacity_units: u64) -> Self {
        let flags = VirtualBlockCreateFlags::empty();
        let info = VirtualBlockCreateInfo { size: capacity_units, flags, allocation_callbacks: None };
        Block(VirtualBlock::new(info).expect("a virtual block"))
    }

    #[inline]
    fn allocate(
        &mut self,
        size_units: u32,
        flags: VirtualAllocationCreateFlags,
    ) -> Option<(VirtualAllocation, u64)> {
        let info =
            VirtualAllocationCreateInfo { size: u64::from(size_units), alignment: 1, user_data: 0, flags };
        // SAFETY: the size is not zero and the alignment is a power of two, as VMA asks.
        unsafe { self.0.allocate(info) }.ok()
    }

    #[inline]
    fn free(&mut self, handle: (VirtualAllocation, u64)) {
        let (mut allocation, _) = handle;
        // SAFETY: the handle is of this block, and is given up here.
        unsafe { self.0.free(&mut allocation) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: no handle outlives the block; VMA asserts that none is live when it is destroyed.
        unsafe { self.0.clear() }
    }
}
