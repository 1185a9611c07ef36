//! The allocator as a Python object.

use std::sync::{Arc, Mutex, PoisonError};

use flex::AllocatorOptions;
use flex::fork::is_forked;
use flex::pressure::SharedCallback;
use flex_sim::RegionIdScheme;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::allocation::Allocation;
use super::callback::{PythonCallback, Slot, is_interrupt, take_raised};
use super::directive::{AllocationDirective, Topology};
use super::errors::exception;
use crate::bindings::memory;
use crate::runtime;

/// An allocator of one device's memory.
#[pyclass(module = "torch_spyre.flex", frozen)]
pub(crate) struct FlexAllocator {
    allocator: flex::FlexAllocator,
    slot: Arc<Slot>,
    /// Held while a callback is set, in two places: without a GIL two threads may do so at once. Before the
    /// allocator mutex and the slot's; nothing is dropped and no Python runs under it.
    setting: Mutex<()>,
}

#[pymethods]
impl FlexAllocator {
    /// An allocator on a simulated device of its own, with `capacity_bytes` for tensors unless `topology` says
    /// otherwise. Raises RegionSetupError for a layout that cannot be or does not fit.
    #[staticmethod]
    #[pyo3(signature = (capacity_bytes, *, topology=None))]
    fn simulated(py: Python<'_>, capacity_bytes: u64, topology: Option<&Topology>) -> PyResult<Self> {
        let made = || {
            let uniform = flex::Topology::uniform(capacity_bytes)?;
            let topology = topology.map_or(&uniform, |topology| &topology.core);
            if topology.tensor_capacity_bytes() > capacity_bytes {
                return Err(flex::FlexError::from(flex::DeviceError::CapacityExceeded {
                    requested_bytes: topology.tensor_capacity_bytes(),
                    acquired_bytes: 0,
                    capacity_bytes,
                }));
            }
            let options = AllocatorOptions::default();
            runtime::simulated("flex".into(), topology, RegionIdScheme::BaseAddress, options)
        };
        let allocator = made().map_err(|error| exception(py, error))?;
        Ok(FlexAllocator { allocator, slot: Arc::default(), setting: Mutex::default() })
    }

    /// Allocates at least `nbytes` bytes (rounded up to 128 per chunk).
    #[pyo3(signature = (nbytes, directive=None))]
    fn allocate(
        &self,
        py: Python<'_>,
        nbytes: u64,
        directive: Option<&AllocationDirective>,
    ) -> PyResult<Allocation> {
        let default = flex::AllocationDirective::default();
        let directive = directive.map_or(&default, |directive| &directive.core);
        let allocated = self.allocator.allocate(nbytes, directive);
        let raised = take_raised();
        match allocated {
            Ok(address) => {
                if let Some(raised) = raised {
                    if is_interrupt(py, &raised) {
                        return Err(raised); // The memory goes back with the address.
                    }
                    raised.write_unraisable(py, None);
                }
                Ok(Allocation::new(address))
            }
            Err(error) => match raised {
                Some(interrupt) if is_interrupt(py, &interrupt) => Err(interrupt),
                cause => {
                    let exception = exception(py, error);
                    exception.set_cause(py, cause);
                    Err(exception)
                }
            },
        }
    }

    /// Sets the function that is called when the device is exhausted, or None. Returns the previous one.
    ///
    /// It is called as `fn(request)` on the allocating thread with the allocator's mutex released; it may free and
    /// allocate. The allocator then searches again. If it returns something true and the search fails, it is called
    /// again, at most 64 times for one request. What it raises becomes the cause of the out-of-memory error.
    #[pyo3(signature = (function))]
    fn set_memory_pressure_callback(
        &self,
        py: Python<'_>,
        function: Option<Py<PyAny>>,
    ) -> PyResult<Option<Py<PyAny>>> {
        if let Some(function) = &function
            && !function.bind(py).is_callable()
        {
            let given = function.bind(py).repr()?;
            return Err(PyTypeError::new_err(format!(
                "invalid callback {given}: expected a callable or None"
            )));
        }
        let callback = function.as_ref().map(|_| {
            let callback: SharedCallback = Arc::new(PythonCallback { slot: Arc::clone(&self.slot) });
            callback
        });
        if is_forked() {
            return Err(exception(py, flex::FlexError::Forked)); // The lock below may be held for ever.
        }
        let replaced = {
            let _setting = self.setting.lock().unwrap_or_else(PoisonError::into_inner);
            self.allocator.set_memory_pressure_callback(callback).map(|_| self.slot.replace(function))
        };
        replaced.map_err(|error| exception(py, error))
    }

    /// One consistent snapshot of the statistics, flat, with the keys of `torch.spyre.memory_stats` and
    /// capacity_bytes, free_bytes and largest_free_bytes.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let statistics = self.allocator.statistics().map_err(|error| exception(py, error))?;
        let dict = memory::statistics_dict(py, &statistics)?;
        dict.set_item("capacity_bytes", statistics.capacity_bytes)?;
        dict.set_item("free_bytes", statistics.free_bytes)?;
        dict.set_item("largest_free_bytes", statistics.largest_free_bytes)?;
        Ok(dict)
    }

    /// Returns unused memory to the device and the host; returns the bytes given back.
    fn empty_cache(&self, py: Python<'_>) -> PyResult<u64> {
        self.allocator.empty_cache().map_err(|error| exception(py, error))
    }

    /// Checks every invariant. Raises FlexError with the one that does not hold.
    fn validate(&self, py: Python<'_>) -> PyResult<()> {
        self.allocator.validate().map_err(|error| exception(py, error))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let statistics = self.allocator.statistics().map_err(|error| exception(py, error))?;
        let (allocated, capacity) = (statistics.allocated_bytes.current, statistics.capacity_bytes);
        Ok(format!("<FlexAllocator: {allocated} of {capacity} bytes allocated>"))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.slot.visit(|function| visit.call(function))
    }

    fn __clear__(&self) {
        drop(self.slot.replace(None));
    }
}

impl Drop for FlexAllocator {
    /// Nobody can allocate any more, but allocations keep the core alive, and with it the callback: a function that
    /// refers to one of them would be a cycle out of the collector's sight.
    fn drop(&mut self) {
        drop(self.slot.replace(None));
    }
}
