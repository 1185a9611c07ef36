//! FlexAllocator on a device that has addresses and no memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flex::{
    AllocationDirective, AllocatorOptions, BlockHandle, Device, DeviceError, DomainId, FlexAllocator,
    FlexError, MemoryType, RegionId, RegionLayout, RegionOrder, Topology, VirtualAddress,
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
        let allocator = FlexAllocator::new(Arc::new(Addresses::default()), &topology, options)?;
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

/// Regions that are numbers.
#[derive(Debug, Default)]
struct Addresses(AtomicU64);

impl Device for Addresses {
    fn name(&self) -> &str {
        "addresses"
    }

    fn capacity_bytes(&self) -> u64 {
        u64::MAX
    }

    fn acquire_region(&self, _: u64, _: DomainId, _: MemoryType) -> Result<RegionId, DeviceError> {
        Ok(RegionId(self.0.fetch_add(1, Ordering::Relaxed)))
    }

    fn release_region(&self, _: RegionId) -> Result<(), DeviceError> {
        Ok(())
    }

    fn can_release_regions(&self) -> bool {
        true
    }

    fn copy_in(&self, _: VirtualAddress, _: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn copy_out(&self, _: VirtualAddress, _: &mut [u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn fill(&self, _: VirtualAddress, _: u64, _: u8) -> Result<(), DeviceError> {
        Ok(())
    }
}
