//! The Python face of the extension module, by area.

pub(crate) mod device;
pub(crate) mod flex_core;
pub(crate) mod memory;
pub(crate) mod pressure;
pub(crate) mod testing;

use flex::FlexError;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::runtime::DeviceMemory;
use crate::torch_abi;

/// A device by index; RuntimeError for a bad one, in a forked child, and before initialisation.
fn device(index: i32) -> PyResult<&'static DeviceMemory> {
    torch_abi::device(index).map_err(PyRuntimeError::new_err)
}

/// What `torch.spyre` functions raise.
fn runtime_error(error: FlexError) -> PyErr {
    match error {
        FlexError::Forked => PyRuntimeError::new_err(torch_abi::FORKED),
        other => PyRuntimeError::new_err(format!("spyre: {other}")),
    }
}

fn value_error(text: String) -> PyErr {
    PyValueError::new_err(text)
}
