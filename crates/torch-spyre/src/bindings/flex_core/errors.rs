//! The one place where the core's errors become Python exceptions.

use flex::FlexError as CoreError;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyModule;

create_exception!(
    torch_spyre.flex,
    FlexError,
    PyException,
    "An operation of the allocator failed; it changed nothing."
);
create_exception!(
    torch_spyre.flex,
    OutOfMemoryError,
    FlexError,
    "No memory was found. Attributes, in bytes: requested_bytes, capacity_bytes, free_bytes, largest_free_bytes."
);
create_exception!(torch_spyre.flex, InvalidSizeError, FlexError, "A size of 0, or one that overflows.");
create_exception!(torch_spyre.flex, InvalidPlacementError, FlexError, "A directive that contradicts itself.");
create_exception!(
    torch_spyre.flex,
    UnknownAllocationError,
    FlexError,
    "An allocation that was freed already."
);
create_exception!(torch_spyre.flex, UnknownDomainError, FlexError, "A domain that the device does not have.");
create_exception!(
    torch_spyre.flex,
    RegionSetupError,
    FlexError,
    "A layout that cannot be, or a refused region."
);
create_exception!(torch_spyre.flex, DeviceError, FlexError, "The device failed.");

/// Adds the exceptions to the module.
pub(crate) fn add_exceptions(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("FlexError", py.get_type::<FlexError>())?;
    module.add("OutOfMemoryError", py.get_type::<OutOfMemoryError>())?;
    module.add("InvalidSizeError", py.get_type::<InvalidSizeError>())?;
    module.add("InvalidPlacementError", py.get_type::<InvalidPlacementError>())?;
    module.add("UnknownAllocationError", py.get_type::<UnknownAllocationError>())?;
    module.add("UnknownDomainError", py.get_type::<UnknownDomainError>())?;
    module.add("RegionSetupError", py.get_type::<RegionSetupError>())?;
    module.add("DeviceError", py.get_type::<DeviceError>())
}

/// The exception for an error of the core.
pub(super) fn exception(py: Python<'_>, error: CoreError) -> PyErr {
    let text = error.to_string();
    match error {
        CoreError::OutOfMemory(oom) => {
            let exception = OutOfMemoryError::new_err(text);
            let value = exception.value(py);
            for (name, bytes) in [
                ("requested_bytes", oom.requested_bytes),
                ("capacity_bytes", oom.capacity_bytes),
                ("free_bytes", oom.free_bytes),
                ("largest_free_bytes", oom.largest_free_bytes),
            ] {
                if let Err(failed) = value.setattr(name, bytes) {
                    return failed;
                }
            }
            exception
        }
        CoreError::InvalidSize { .. } => InvalidSizeError::new_err(text),
        CoreError::InvalidPlacement(_) => InvalidPlacementError::new_err(text),
        CoreError::UnknownAllocation { .. } => UnknownAllocationError::new_err(text),
        CoreError::UnknownDomain { .. } => UnknownDomainError::new_err(text),
        CoreError::RegionSetup(_) => RegionSetupError::new_err(text),
        CoreError::Device(_) => DeviceError::new_err(text),
        _ => FlexError::new_err(text),
    }
}

/// The exception for an allocation that was freed.
pub(super) fn freed() -> PyErr {
    UnknownAllocationError::new_err("the allocation has been freed")
}
