//! The whole of flex, as programs use it: `FlexAllocator` on a device that has no memory.

use std::sync::Arc;

use flex::{
    AllocationDirective, AllocatorOptions, BlockHandle, Device, DeviceError, DomainId, FlexAllocator,
    MemoryType, RegionId, RegionLayout, Topology, VirtualAddress,
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
        let device = Arc::new(AddressesOnly { capacity_bytes: size_bytes });
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

/// A device that gives out regions with nothing behind them.
#[derive(Debug)]
struct AddressesOnly {
    capacity_bytes: u64,
}

impl AddressesOnly {
    fn no_memory<T>(operation: &'static str) -> Result<T, DeviceError> {
        Err(DeviceError::Failed { operation, code: 0, message: "this device has no memory".into() })
    }
}

impl Device for AddressesOnly {
    fn name(&self) -> &str {
        "addresses only"
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn acquire_region(&self, _: u64, _: DomainId, _: MemoryType) -> Result<RegionId, DeviceError> {
        Ok(RegionId(0))
    }

    fn release_region(&self, _: RegionId) -> Result<(), DeviceError> {
        Ok(())
    }

    fn can_release_regions(&self) -> bool {
        true
    }

    fn copy_in(&self, _: VirtualAddress, _: &[u8]) -> Result<(), DeviceError> {
        AddressesOnly::no_memory("copy in")
    }

    fn copy_out(&self, _: VirtualAddress, _: &mut [u8]) -> Result<(), DeviceError> {
        AddressesOnly::no_memory("copy out")
    }

    fn fill(&self, _: VirtualAddress, _: u64, _: u8) -> Result<(), DeviceError> {
        AddressesOnly::no_memory("fill")
    }
}
