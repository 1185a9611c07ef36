//! The devices of the process that this code is part of.
//!
//! The Python extension has devices and a gate of its own; it hands them out through [`provide_devices`], so that
//! native code in the same process allocates from the memory that tensors come from, and its requests have Python's
//! garbage collected. The stand-alone library has none.

use std::sync::OnceLock;

use flex::FlexAllocator as Allocator;

use crate::allocator::{FlexAllocator, publish};
use crate::out::Out;
use crate::status::{Failure, FlexStatus, guarded_unlocked};

/// Finds the allocator of a device by its index, or says why there is none.
pub type DeviceProvider = fn(index: i32) -> Result<Allocator, String>;

static PROVIDER: OnceLock<DeviceProvider> = OnceLock::new();

/// Makes `flex_device_allocator` ask `provider`; only the first call of a process counts.
pub fn provide_devices(provider: DeviceProvider) {
    let _ = PROVIDER.set(provider);
}

/// The allocator of the device `spyre:<index>` of the Python process that this library is part of: the same memory
/// and the same garbage collection as tensors have. Release the handle with `flex_allocator_release`.
///
/// `FLEX_NOT_AVAILABLE` in the stand-alone library, before `torch_spyre` is imported, and for an index of no device.
///
/// # Safety
/// `allocator` is null (an error) or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_device_allocator(index: i32, allocator: *mut FlexAllocator) -> FlexStatus {
    guarded_unlocked(|| {
        // SAFETY: the caller's contract.
        let out = unsafe { Out::new(allocator, c"flex_device_allocator: allocator is null or misaligned") }?;
        let provider = PROVIDER.get().ok_or(Failure::fixed(
            FlexStatus::FLEX_NOT_AVAILABLE,
            c"this library is not part of a Python process with spyre devices; expected torch_spyre to be imported",
        ))?;
        let found = provider(index).map_err(|text| Failure::new(FlexStatus::FLEX_NOT_AVAILABLE, text))?;
        out.write(publish(found)?);
        Ok(())
    })
}
