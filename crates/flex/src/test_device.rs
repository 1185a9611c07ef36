//! A device without memory, for unit tests and models: its regions are numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Device, DeviceError, DomainId, MemoryType, RegionId, VirtualAddress};

#[derive(Debug, Default)]
pub(crate) struct Addresses(AtomicU64);

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
