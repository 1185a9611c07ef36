//! Who holds device memory: the parts of `torch.spyre.memory.held_report` and of the out-of-memory error.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{device, runtime_error, value_error};
use crate::holders;
use crate::interpreter::stacks::Frame;
use crate::interpreter::{held, interrupts};
use crate::libraries;

/// Tells what the files of all installed packages begin with, and those of PyTorch among them.
#[pyfunction]
pub(crate) fn set_libraries(installed: Vec<String>, pytorch: Vec<String>) {
    libraries::set(installed, pytorch);
}

/// The number of the frame that stands for a stack, given by the files of its frames, innermost first.
#[pyfunction]
pub(crate) fn own_frame(filenames: Vec<String>) -> usize {
    libraries::own_frame(filenames.iter().map(String::as_str))
}

/// Tells who looks through tracebacks when a request fails: `hint(device, timeout_s)` returns a sentence or None, and
/// whether all was looked at.
#[pyfunction]
pub(crate) fn set_traceback_finder(finder: Py<PyAny>) {
    held::set_traceback_finder(finder);
}

/// The sizes of a device's live blocks by address, in bytes.
#[pyfunction]
pub(crate) fn live_blocks(py: Python<'_>, index: i32) -> PyResult<Bound<'_, PyDict>> {
    let allocator = &device(index)?.allocator;
    let regions = allocator.regions().map_err(runtime_error)?;
    let sizes = PyDict::new(py);
    for region in &regions {
        let base = allocator.host_base(region).unwrap_or_default() as u64;
        for block in region.blocks.iter().filter(|block| block.occupied) {
            sizes.set_item(base + block.offset_bytes, block.size_bytes)?;
        }
    }
    Ok(sizes)
}

/// A holder: bytes, blocks, and where: file, line, function; None where that is not known.
type Held = (u64, u64, Option<(String, u32, String)>);

/// Who holds a device's memory, the largest first, and whether places are recorded.
#[pyfunction]
pub(crate) fn live_holders(index: i32) -> PyResult<(bool, Vec<Held>)> {
    let device = device(index)?;
    let Some(survey) = holders::survey(device) else { return Ok((false, Vec::new())) };
    let place = |frame: &Frame| (frame.filename.to_string(), frame.line, frame.name.to_string());
    let holders =
        survey.holders.iter().map(|holder| (holder.bytes, holder.blocks, holder.place.as_ref().map(place)));
    Ok((survey.recorded, holders.collect()))
}

/// Bytes of a device that only frozen garbage holds; None if that cannot be told, or not in time.
#[pyfunction]
pub(crate) fn frozen_garbage_bytes(py: Python<'_>, index: i32, timeout_s: f64) -> PyResult<Option<u64>> {
    let device = device(index)?;
    let timeout = Duration::try_from_secs_f64(timeout_s)
        .map_err(|_| value_error(format!("invalid timeout_s {timeout_s}: expected seconds, at least 0")))?;
    let bytes = held::frozen_bytes(py, device.index as u32, timeout);
    interrupts::raise_noted();
    Ok(bytes)
}
