//! Initialisation, configuration and devices.

use std::path::Path;

use flex::MemoryType;
use pyo3::exceptions::{PyRuntimeError, PyRuntimeWarning};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{device, runtime_error, value_error};
use crate::configuration::{Configuration, DeviceKind, collect_policy_name};
use crate::interpreter::stacks;
use crate::runtime::{self, Runtime, region_order_name, runtime};
use crate::{interpreter, stream, torch_abi};

/// Reads the configuration, makes the devices and registers with torch. Idempotent.
///
/// Raises ImportError in a sub-interpreter, ValueError for a bad configuration, RuntimeError if a device cannot be
/// made.
#[pyfunction]
pub(crate) fn initialize(py: Python<'_>) -> PyResult<()> {
    interpreter::require_main(py)?;
    let made = if runtime().is_none() { make_runtime(py) } else { Ok(()) };
    if let Err(error) = &made {
        runtime::set_failure(error.value(py).to_string());
    }
    // Also after a failure: torch then asks the device, which says what is wrong.
    torch_abi::register();
    made
}

fn make_runtime(py: Python<'_>) -> PyResult<()> {
    let configuration = Configuration::from_environment().map_err(value_error)?;
    let gate = interpreter::new_gate(py, configuration.policy)?;
    let warn_bytes = configuration.cycle_warning_bytes;
    interpreter::cycles::record(configuration.cycles || warn_bytes.is_some(), warn_bytes);
    let total = configuration.device_memory_bytes;
    if configuration.history_entries > 0 {
        stacks::enable(py)?;
    }
    let targets = configuration.stream.clone();
    let runtime = Runtime::new(configuration, gate).map_err(|error| {
        value_error(format!("TORCH_SPYRE_ALLOC_CONF: device_memory of {total} bytes: {error}"))
    })?;
    watch_forks()?;
    if !targets.is_empty() {
        interpreter::detached(py, || stream::start(&targets, runtime.allocators()))
            .map_err(|error| value_error(format!("TORCH_SPYRE_ALLOC_CONF: {error}")))?;
    }
    runtime.publish();
    flex_c::provide_devices(|index| runtime::device(index).map(|device| device.allocator.clone()));
    Ok(())
}

fn watch_forks() -> PyResult<()> {
    extern "C" fn in_child() {
        flex::fork::mark_forked();
    }
    // SAFETY: the handler only stores to an atomic.
    let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    if failed == 0 {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(format!("spyre: pthread_atfork failed with code {failed}")))
}

/// The configuration in effect, by the names of the environment.
#[pyfunction]
pub(crate) fn configuration(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let runtime = runtime::ready().map_err(PyRuntimeError::new_err)?;
    let configuration = &runtime.configuration;
    let dict = PyDict::new(py);
    dict.set_item("device_memory", configuration.device_memory_bytes)?;
    dict.set_item("devices", configuration.device_count)?;
    dict.set_item("gc", collect_policy_name(configuration.policy.collect))?;
    dict.set_item("gc_timeout_ms", configuration.policy.timeout.as_millis())?;
    dict.set_item("escalate", configuration.policy.escalate)?;
    dict.set_item("region_order", region_order_name(configuration.region_order))?;
    dict.set_item("history", configuration.history_entries)?;
    dict.set_item("stream_file", configuration.stream.file.as_deref().map(Path::as_os_str))?;
    dict.set_item("stream_socket", configuration.stream.socket)?;
    dict.set_item("poison", configuration.poison)?;
    dict.set_item("cycles", configuration.cycles)?;
    dict.set_item("cycle_warning", configuration.cycle_warning_bytes)?;
    dict.set_item("device", kind_name(configuration.kind))?;
    dict.set_item("max_regions", configuration.max_regions)?;
    dict.set_item("memory_domains", configuration.domain_count)?;
    dict.set_item("debug", configuration.debug)?;
    Ok(dict)
}

fn kind_name(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Sim => "SIM",
        DeviceKind::Pf => "PF",
        DeviceKind::Vf => "VF",
    }
}

/// Raises RuntimeError with the reason unless the devices can be used.
#[pyfunction]
pub(crate) fn ensure_ready() -> PyResult<()> {
    runtime::ready().map(drop).map_err(PyRuntimeError::new_err)
}

/// Whether this process is a forked child, in which the devices cannot be used.
#[pyfunction]
pub(crate) fn is_in_bad_fork() -> bool {
    flex::fork::is_forked()
}

/// Number of devices; 0 before initialisation.
#[pyfunction]
pub(crate) fn device_count() -> usize {
    runtime().map_or(0, |runtime| runtime.devices().len())
}

/// What a device is: name, total_memory (bytes), regions, memory_domains, kind.
#[pyfunction]
pub(crate) fn device_properties(py: Python<'_>, index: i32) -> PyResult<Bound<'_, PyDict>> {
    let device = device(index)?;
    let total_memory = device.allocator.statistics().map_err(runtime_error)?.capacity_bytes;
    let kind = runtime::ready().map_err(PyRuntimeError::new_err)?.configuration.kind;
    let tensor_regions =
        device.topology.regions().iter().filter(|region| region.memory_type == MemoryType::Tensor);
    let dict = PyDict::new(py);
    dict.set_item("name", format!("Simulated Spyre ({})", kind_name(kind)))?;
    dict.set_item("total_memory", total_memory)?;
    dict.set_item("regions", tensor_regions.count())?;
    dict.set_item("memory_domains", device.topology.domain_count())?;
    dict.set_item("kind", kind_name(kind))?;
    Ok(dict)
}

/// This thread's current device.
#[pyfunction]
pub(crate) fn current_device() -> i32 {
    torch_abi::current_device()
}

/// Makes a device current for this thread. Raises RuntimeError for one that does not exist.
#[pyfunction]
pub(crate) fn set_device(index: i32) -> PyResult<()> {
    device(index)?;
    torch_abi::set_current_device(index);
    Ok(())
}

/// Ends collecting under pressure, at interpreter exit. Allocations go on without it, frees always do.
///
/// Warns at the end if a thread could not be waited for that takes its stack, which may crash if it goes on.
#[pyfunction]
pub(crate) fn shutdown(py: Python<'_>) -> PyResult<()> {
    // While the stacks that it names are there. A disk that is too slow keeps nobody from exiting.
    interpreter::detached(py, stream::stop);
    let are_closed = interpreter::detached(py, interpreter::stacks::close);
    interpreter::cycles::record(false, None);
    if let Some(runtime) = runtime() {
        interpreter::detached(py, || runtime.gate.close());
    }
    if are_closed {
        return Ok(());
    }
    let text = c"a thread that takes its stack has been stopped for ten seconds; Python exits without waiting for it";
    PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), text, 1)
}
