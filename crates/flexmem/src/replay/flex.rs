//! FlexAllocator on a device that has addresses and no memory.

use std::sync::Arc;

use flex::{
    AddressesOnly, AllocationDirective, AllocatorOptions, BlockHandle, DomainId, FlexAllocator, FlexError,
    MemoryType, RegionLayout, RegionOrder, Topology, VirtualAddress,
};

use super::{Player, Refusal, Span};

/// How the memory of a device is divided into regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Equal regions for tensors.
    pub regions: u32,
}

impl Layout {
    /// The topology with so much memory for tensors.
    ///
    /// # Errors
    ///
    /// As [`Topology::custom`]: no regions, or regions that are too small or too large.
    pub fn topology(self, memory_bytes: u64) -> Result<Topology, FlexError> {
        let size_bytes = memory_bytes / u64::from(self.regions.max(1));
        let (domain, memory_type) = (DomainId(0), MemoryType::Tensor);
        let region = RegionLayout { domain, memory_type, size_bytes };
        Topology::custom(vec![region; self.regions as usize])
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct FlexReplay {
    allocator: FlexAllocator,
    directive: AllocationDirective,
}

impl FlexReplay {
    /// An allocator of an empty device.
    ///
    /// # Errors
    ///
    /// As [`Layout::topology`].
    pub fn new(memory_bytes: u64, layout: Layout, region_order: RegionOrder) -> Result<Self, FlexError> {
        let topology = layout.topology(memory_bytes)?;
        // Magazines would make where a block goes depend on the thread.
        let options = AllocatorOptions { region_order, magazines: false, ..AllocatorOptions::default() };
        let allocator = FlexAllocator::new(Arc::new(AddressesOnly::default()), &topology, options)?;
        Ok(FlexReplay { allocator, directive: AllocationDirective::default() })
    }

    fn statistics(&self) -> flex::Statistics {
        self.allocator.statistics().expect("this process is not a forked child")
    }
}

impl Player for FlexReplay {
    type Block = BlockHandle;

    fn allocate(&mut self, bytes: u64, _stream: u64) -> Result<(BlockHandle, Span), Refusal> {
        match self.allocator.allocate_block(bytes, &self.directive) {
            Ok((handle, chunk)) => {
                let VirtualAddress { region_id, offset_bytes } = chunk.address;
                Ok((handle, (region_id.0, offset_bytes, offset_bytes + chunk.size_bytes)))
            }
            // Out of memory, or a size that no device has.
            Err(_) => {
                let statistics = self.statistics();
                let (free_bytes, largest_free_bytes) = (statistics.free_bytes, statistics.largest_free_bytes);
                Err(Refusal { free_bytes, largest_free_bytes })
            }
        }
    }

    fn free(&mut self, block: BlockHandle) {
        self.allocator.free_block(block).expect("the block is live");
    }

    fn reserved_bytes(&self) -> u64 {
        self.statistics().reserved_bytes.current
    }
}
