//! An owned allocation as a Python object.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use flex::{AllocationRef, CompositeAddress};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use super::errors::{exception, freed};

/// Device memory that frees itself with the object, or earlier through `free`.
///
/// An allocation of one chunk on a host-addressable device offers its bytes through the buffer protocol, writable.
#[pyclass(module = "torch_spyre.flex", frozen)]
pub(crate) struct Allocation {
    state: Mutex<State>,
    nbytes: u64,
}

struct State {
    /// `None` once freed.
    address: Option<CompositeAddress>,
    /// Buffers handed out and not released.
    exports: usize,
}

impl Allocation {
    pub(super) fn new(address: CompositeAddress) -> Self {
        let nbytes = address.requested_bytes();
        Allocation { state: Mutex::new(State { address: Some(address), exports: 0 }), nbytes }
    }

    /// A weak reference, or `None` once freed.
    pub(super) fn reference(&self) -> Option<AllocationRef> {
        self.lock().address.as_ref().map(CompositeAddress::reference)
    }

    /// Counts one more buffer that is handed out, and says where its bytes are.
    fn export(&self) -> PyResult<usize> {
        let mut state = self.lock();
        let address = state.address.as_ref().ok_or_else(freed)?;
        let host_address = address.host_address().ok_or_else(|| {
            PyBufferError::new_err(format!(
                "an allocation of {} chunks has no single buffer; expected one chunk on a host-addressable device",
                address.chunks().len()
            ))
        })?;
        state.exports += 1;
        Ok(host_address)
    }

    /// A leaf: held for a few field accesses, never while Python runs. (Making a `PyErr` runs nothing yet.)
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Allocation {
    /// The chunks: (region_id, offset, size, domain), offset and size in bytes.
    #[getter]
    fn chunks(&self) -> PyResult<Vec<(u64, u64, u64, u32)>> {
        let state = self.lock();
        let address = state.address.as_ref().ok_or_else(freed)?;
        let describe = |chunk: flex::Chunk| {
            (chunk.address.region_id.0, chunk.address.offset_bytes, chunk.size_bytes, chunk.domain.0)
        };
        Ok(address.chunks().map(describe).collect())
    }

    /// Bytes asked for.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.nbytes
    }

    /// Frees the memory. Raises UnknownAllocationError if it was freed, BufferError while a buffer is exported.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        let address = {
            let mut state = self.lock();
            if state.exports > 0 {
                let exports = state.exports;
                return Err(PyBufferError::new_err(format!(
                    "cannot free an allocation with {exports} exported buffer(s); release them first"
                )));
            }
            state.address.take().ok_or_else(freed)?
        };
        address.free().map_err(|error| exception(py, error))
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    /// Frees the memory unless that was done inside the block.
    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if self.lock().address.is_some() { self.free(py) } else { Ok(()) }
    }

    fn __len__(&self) -> usize {
        self.nbytes as usize
    }

    fn __repr__(&self) -> String {
        match &self.lock().address {
            Some(address) => {
                format!("<Allocation of {} bytes in {} chunk(s)>", self.nbytes, address.chunks().len())
            }
            None => format!("<freed Allocation of {} bytes>", self.nbytes),
        }
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let host_address = this.export()?;
        // SAFETY: the memory is `nbytes` long and stays ours: `free` refuses while `exports` is not 0, and the view
        // keeps this object alive.
        let failed = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                host_address as *mut c_void,
                this.nbytes as ffi::Py_ssize_t,
                0,
                flags,
            )
        };
        if failed != 0 {
            this.lock().exports -= 1;
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.lock().exports -= 1;
    }
}
