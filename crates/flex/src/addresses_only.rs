//! A device that has addresses and no memory: to find out where blocks would lie. No lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Device, DeviceError, DomainId, MemoryType, RegionId, VirtualAddress};

/// A device of any size whose regions are numbers: for replays, models and tests of the allocator alone. It cannot
/// copy, and takes what is filled for done.
#[derive(Debug, Default)]
pub struct AddressesOnly(AtomicU64);

impl AddressesOnly {
    fn no_memory(operation: &'static str) -> Result<(), DeviceError> {
        Err(DeviceError::Failed { operation, code: 0, message: "this device has no memory".into() })
    }
}

impl Device for AddressesOnly {
    fn name(&self) -> &str {
        "addresses only"
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
        AddressesOnly::no_memory("copy in")
    }

    fn copy_out(&self, _: VirtualAddress, _: &mut [u8]) -> Result<(), DeviceError> {
        AddressesOnly::no_memory("copy out")
    }

    fn fill(&self, _: VirtualAddress, _: u64, _: u8) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_numbers_and_nothing_is_copied() {
        let device = AddressesOnly::default();
        let regions = [1, 2].map(|_| device.acquire_region(128, DomainId(0), MemoryType::Tensor).unwrap());
        assert_eq!(regions, [RegionId(0), RegionId(1)]);
        let address = VirtualAddress { region_id: regions[0], offset_bytes: 0 };
        assert!(device.fill(address, 128, 7).is_ok());
        let error = device.copy_in(address, &[1]).unwrap_err().to_string();
        assert!(error.contains("this device has no memory"), "{error}");
        assert!(device.copy_out(address, &mut [0]).is_err());
    }
}
