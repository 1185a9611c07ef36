//! Pressure statistics and policy.

use std::sync::Arc;
use std::time::Duration;

use flex::gate::HookId;
use flex::pressure::{PressureStatistics, SkipReason};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{device, value_error};
use crate::configuration::{MAX_TIMEOUT_MS, collect_policy, collect_policy_name};
use crate::interpreter::hook::{self, PythonHook};
use crate::runtime;

/// The pressure statistics of a device. Every key exists from the start.
#[pyfunction]
pub(crate) fn pressure_stats(py: Python<'_>, index: i32) -> PyResult<Bound<'_, PyDict>> {
    let statistics = device(index)?.allocator.pressure_statistics();
    let dict = PyDict::new(py);
    for (name, value) in counters(&statistics) {
        dict.set_item(name, value)?;
    }
    for (reason, value) in SkipReason::ALL.iter().zip(statistics.skipped) {
        dict.set_item(format!("collections.skipped.{}", reason.name()), value)?;
    }
    Ok(dict)
}

fn counters(statistics: &PressureStatistics) -> [(&'static str, u64); 12] {
    [
        ("events", statistics.events),
        ("rescued", statistics.rescued),
        ("failed", statistics.failed),
        ("coalesced", statistics.coalesced),
        ("collections.young", statistics.young_collections),
        ("collections.full", statistics.full_collections),
        ("reclaimed_bytes", statistics.reclaimed_bytes),
        ("collection_time_ns", statistics.collection_time_ns),
        ("collection_max_ns", statistics.collection_max_ns),
        ("collectors_abandoned", statistics.collectors_abandoned),
        ("hooks.run", statistics.hooks_run),
        ("hooks.failed", statistics.hooks_failed),
    ]
}

/// Sets the pressure statistics of a device to 0.
#[pyfunction]
pub(crate) fn reset_pressure_stats(index: i32) -> PyResult<()> {
    device(index)?.allocator.reset_pressure_statistics();
    Ok(())
}

/// Changes the policy; what is None stays as it is.
#[pyfunction]
#[pyo3(signature = (gc=None, escalate=None, timeout_ms=None))]
pub(crate) fn set_pressure_policy(
    gc: Option<&str>,
    escalate: Option<bool>,
    timeout_ms: Option<u64>,
) -> PyResult<()> {
    let gate = &runtime::ready().map_err(PyRuntimeError::new_err)?.gate;
    let collect = gc.map(|name| {
        let expected = "expected \"always\", \"respect_disable\" or \"off\"";
        collect_policy(name).ok_or_else(|| value_error(format!("invalid gc {name:?}: {expected}")))
    });
    let collect = collect.transpose()?;
    if let Some(timeout_ms) = timeout_ms.filter(|given| !(1..=MAX_TIMEOUT_MS).contains(given)) {
        let expected = format!("expected an integer from 1 to {MAX_TIMEOUT_MS}");
        return Err(value_error(format!("invalid timeout_ms {timeout_ms}: {expected}")));
    }
    gate.update_policy(|settings| {
        settings.collect = collect.unwrap_or(settings.collect);
        settings.escalate = escalate.unwrap_or(settings.escalate);
        settings.timeout = timeout_ms.map_or(settings.timeout, Duration::from_millis);
    });
    Ok(())
}

/// The policy in effect.
#[pyfunction]
pub(crate) fn get_pressure_policy(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let settings = runtime::ready().map_err(PyRuntimeError::new_err)?.gate.policy();
    let dict = PyDict::new(py);
    dict.set_item("gc", collect_policy_name(settings.collect))?;
    dict.set_item("escalate", settings.escalate)?;
    dict.set_item("timeout_ms", settings.timeout.as_millis())?;
    Ok(dict)
}

/// Registers a function that is called as `fn(event)` when collecting was not enough; higher priorities first.
/// Returns its number.
#[pyfunction]
pub(crate) fn register_pressure_hook(py: Python<'_>, function: Py<PyAny>, priority: i64) -> PyResult<u64> {
    hook::release_dropped(py);
    let gate = &runtime::ready().map_err(PyRuntimeError::new_err)?.gate;
    match gate.register_hook(priority, Arc::new(PythonHook::new(function))) {
        Ok(id) => Ok(id.to_raw()),
        Err(_) => Err(PyRuntimeError::new_err(runtime::FORKED)),
    }
}

/// Removes a hook by its number; false if it was removed before. One that is running is not interrupted.
#[pyfunction]
pub(crate) fn remove_pressure_hook(py: Python<'_>, number: u64) -> PyResult<bool> {
    let gate = &runtime::ready().map_err(PyRuntimeError::new_err)?.gate;
    let removed = gate.remove_hook(HookId::from_raw(number));
    let found = removed.is_some();
    drop(removed);
    hook::release_dropped(py);
    Ok(found)
}
