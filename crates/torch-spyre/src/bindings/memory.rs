//! `torch.spyre.memory`: statistics, the cache.

use flex::{Stat, Statistics};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{device, runtime_error, value_error};
use crate::interpreter;
use crate::runtime::{self, Runtime, runtime};

/// The statistics of a device, flat, under the keys of `torch.cuda.memory_stats`.
#[pyfunction]
pub(crate) fn memory_stats(py: Python<'_>, index: i32) -> PyResult<Bound<'_, PyDict>> {
    let statistics = device(index)?.allocator.statistics().map_err(runtime_error)?;
    statistics_dict(py, &statistics)
}

/// Statistics under the keys of `torch.cuda.memory_stats`.
pub(super) fn statistics_dict<'py>(py: Python<'py>, statistics: &Statistics) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, stat) in stats(statistics) {
        for (field, value) in [
            ("current", stat.current),
            ("peak", stat.peak),
            ("allocated", stat.allocated),
            ("freed", stat.freed),
        ] {
            dict.set_item(format!("{name}.all.{field}"), value)?;
        }
    }
    dict.set_item("num_ooms", statistics.num_ooms)?;
    dict.set_item("num_alloc_retries", statistics.num_alloc_retries)?;
    dict.set_item("num_device_alloc", statistics.segment.allocated)?;
    dict.set_item("num_device_free", statistics.segment.freed)?;
    Ok(dict)
}

fn stats(statistics: &Statistics) -> [(&'static str, &Stat); 9] {
    [
        ("allocated_bytes", &statistics.allocated_bytes),
        ("requested_bytes", &statistics.requested_bytes),
        ("active_bytes", &statistics.active_bytes),
        ("reserved_bytes", &statistics.reserved_bytes),
        ("inactive_split_bytes", &statistics.inactive_split_bytes),
        ("allocation", &statistics.allocation),
        ("active", &statistics.active),
        ("segment", &statistics.segment),
        ("inactive_split", &statistics.inactive_split),
    ]
}

/// Free and total bytes of a device.
#[pyfunction]
pub(crate) fn mem_get_info(index: i32) -> PyResult<(u64, u64)> {
    let statistics = device(index)?.allocator.statistics().map_err(runtime_error)?;
    Ok((statistics.free_bytes, statistics.capacity_bytes))
}

/// Sets the peaks of a device to its current figures.
#[pyfunction]
pub(crate) fn reset_peak_memory_stats(index: i32) -> PyResult<()> {
    device(index)?.allocator.reset_peak_statistics().map_err(runtime_error)
}

/// Sets the accumulated figures of a device to 0.
#[pyfunction]
pub(crate) fn reset_accumulated_memory_stats(index: i32) -> PyResult<()> {
    device(index)?.allocator.reset_accumulated_statistics().map_err(runtime_error)
}

/// Returns unused memory of all devices to where it came from.
#[pyfunction]
pub(crate) fn empty_cache(py: Python<'_>) -> PyResult<()> {
    let devices = runtime().map_or(&[][..], Runtime::devices);
    interpreter::detached(py, || {
        devices.iter().try_for_each(|device| device.allocator.empty_cache().map(drop))
    })
    .map_err(runtime_error)
}

/// Caps the allocated bytes of a device at a fraction of its memory, from 0 to 1.
#[pyfunction]
pub(crate) fn set_memory_fraction(fraction: f64, index: i32) -> PyResult<()> {
    if !(0.0..=1.0).contains(&fraction) {
        return Err(value_error(format!("invalid fraction {fraction}: expected a number from 0 to 1")));
    }
    let allocator = &device(index)?.allocator;
    let capacity = allocator.statistics().map_err(runtime_error)?.capacity_bytes;
    let limit = (fraction < 1.0).then_some((capacity as f64 * fraction) as u64);
    allocator.set_limit_bytes(limit).map_err(runtime_error)
}

/// The device whose memory holds an address, or -1.
#[pyfunction]
pub(crate) fn device_of(address: usize) -> i32 {
    runtime::device_of(address)
}
