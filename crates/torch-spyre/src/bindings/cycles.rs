//! Cycle reports: who held the device memory that collections freed, or that dead cycles hold now.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::device;
use crate::interpreter::cycles::{self, Holding, Ledger, Record, Sites, Sum, dead};
use crate::interpreter::interrupts;

/// Tells who names what dead cycles hold: `explain(objects, garbage, tensors, frozen)` and
/// `warn(device, nbytes, cycles, name, path, filename, line, frames)`, with the type of tensors, and the types that are
/// no owners.
#[pyfunction]
pub(crate) fn set_cycle_explainer(
    explain: Py<PyAny>,
    warn: Py<PyAny>,
    tensor: Py<PyAny>,
    containers: Vec<Py<PyAny>>,
) {
    cycles::set_explainer(explain, warn, tensor, containers);
}

/// Turns the recording of holders on or off, and says from how many bytes on they are warned about.
#[pyfunction]
#[pyo3(signature = (enabled, warn_bytes=None))]
pub(crate) fn record_cycles(enabled: bool, warn_bytes: Option<u64>) {
    cycles::record(enabled, warn_bytes);
}

/// Whether holders are recorded, and from how many bytes on they are warned about.
#[pyfunction]
pub(crate) fn recording_cycles() -> (bool, Option<u64>) {
    cycles::recording()
}

/// What collections freed of a device's memory, and who held it.
#[pyfunction]
pub(crate) fn cycle_ledger(py: Python<'_>, index: i32) -> PyResult<Bound<'_, PyDict>> {
    let Ledger { pressure, program, recorded_bytes, holdings, sites, recent } =
        cycles::ledger(device(index)?.index);
    let dict = PyDict::new(py);
    dict.set_item("pressure", sum(pressure))?;
    dict.set_item("program", sum(program))?;
    dict.set_item("recorded_bytes", recorded_bytes)?;
    dict.set_item("holdings", holding_list(py, holdings.values())?)?;
    dict.set_item("sites", site_list(&sites))?;
    dict.set_item("recent", recent.iter().map(|each| record(py, each)).collect::<PyResult<Vec<_>>>()?)?;
    Ok(dict)
}

/// Forgets what is known about a device.
#[pyfunction]
pub(crate) fn reset_cycle_ledger(index: i32) -> PyResult<()> {
    cycles::reset(device(index)?.index);
    Ok(())
}

/// What only dead cycles hold of a device, in bytes, and by holder; None if there is no answer in time, or on a
/// free-threaded build other than of CPython 3.13.
#[pyfunction]
pub(crate) fn find_dead_cycles(
    py: Python<'_>,
    index: i32,
    timeout_s: f64,
) -> PyResult<Option<(u64, Bound<'_, PyList>)>> {
    let device = device(index)?;
    let timeout = Duration::try_from_secs_f64(timeout_s).map_err(|_| {
        PyValueError::new_err(format!("invalid timeout_s {timeout_s}: expected seconds, at least 0"))
    })?;
    let found = dead::find(py, device, timeout);
    interrupts::raise_noted();
    let Some(found) = found else { return Ok(None) };
    Ok(Some((found.bytes, holding_list(py, found.holdings.iter())?)))
}

fn sum(sum: Sum) -> (u64, u64, u64) {
    (sum.collections, sum.freed_bytes, sum.freed_blocks)
}

fn holding_list<'py, 'a>(
    py: Python<'py>,
    holdings: impl Iterator<Item = &'a Holding>,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for holding in holdings {
        let Holding { holder, bytes, blocks, native_bytes, cycles, .. } = holding;
        let dict = PyDict::new(py);
        dict.set_item("name", &holder.name)?;
        dict.set_item("path", &holder.path)?;
        dict.set_item("filename", &holder.filename)?;
        dict.set_item("line", holder.line)?;
        dict.set_item("nbytes", bytes)?;
        dict.set_item("blocks", blocks)?;
        dict.set_item("native_bytes", native_bytes)?;
        dict.set_item("cycles", cycles)?;
        dict.set_item("frames", holding.main_site().map_or_else(Vec::new, cycles::frames))?;
        list.append(dict)?;
    }
    Ok(list)
}

/// A stack, innermost frame first (file, line, function), and the bytes and blocks that were allocated there.
type Site = (Vec<(String, u32, String)>, u64, u64);

fn site_list(sites: &Sites) -> Vec<Site> {
    sites.iter().map(|(site, sum)| (cycles::frames(*site), sum.bytes, sum.blocks)).collect()
}

fn record<'py>(py: Python<'py>, record: &Record) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("under_pressure", record.under_pressure)?;
    dict.set_item("generation", record.generation)?;
    dict.set_item("objects", record.objects)?;
    dict.set_item("freed_bytes", record.freed_bytes)?;
    dict.set_item("freed_blocks", record.freed_blocks)?;
    dict.set_item("elapsed_ns", u64::try_from(record.elapsed.as_nanos()).unwrap_or(u64::MAX))?;
    let holdings = record.holdings.as_ref().map(|holdings| holding_list(py, holdings.iter())).transpose()?;
    dict.set_item("holdings", holdings)?;
    dict.set_item("sites", site_list(&record.sites))?;
    Ok(dict)
}
