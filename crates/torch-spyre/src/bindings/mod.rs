//! The Python face of the extension module, by area.

pub(crate) mod cycles;
pub(crate) mod device;
pub(crate) mod flex_core;
pub(crate) mod held;
pub(crate) mod history;
pub(crate) mod memory;
pub(crate) mod pressure;
pub(crate) mod stream;
pub(crate) mod testing;

use flex::FlexError;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::runtime::{self, DeviceMemory};

/// A device by index; RuntimeError for a bad one, in a forked child, and before initialisation.
fn device(index: i32) -> PyResult<&'static DeviceMemory> {
    runtime::device(index).map_err(PyRuntimeError::new_err)
}

/// What `torch.spyre` functions raise.
fn runtime_error(error: FlexError) -> PyErr {
    match error {
        FlexError::Forked => PyRuntimeError::new_err(runtime::FORKED),
        other => PyRuntimeError::new_err(format!("spyre: {other}")),
    }
}

fn value_error(text: String) -> PyErr {
    PyValueError::new_err(text)
}
