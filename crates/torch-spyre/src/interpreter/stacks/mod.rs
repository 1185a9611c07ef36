//! The Python stack of an allocation, as the number of a site: the process's [`python_stacks`].
//!
//! Reading a stack neither attaches nor waits, so [`capture`] may be called wherever an allocation may, before the
//! allocator mutex is taken. No lock here; that of `python_stacks` is a leaf.

use std::ffi::CStr;
use std::sync::{Arc, OnceLock};

use flex::fork::is_forked;
use flex::history::Sites;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyModule};
pub(crate) use python_stacks::Frame;
use python_stacks::Stacks;

static STACKS: OnceLock<Stacks> = OnceLock::new();

const PROBE_SOURCE: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("probe.py"), "\0").as_bytes()) {
        Ok(source) => source,
        Err(_) => panic!("probe.py has no NUL"),
    };

/// Makes [`capture`] work, from now on and until the interpreter exits. What is read from memory is compared with what
/// CPython says, on stacks of every form; if they differ, stacks are taken on attached threads only.
///
/// # Errors
/// RuntimeError if this interpreter lacks a function that is needed.
pub(crate) fn enable(py: Python<'_>) -> PyResult<()> {
    if STACKS.get().is_some() {
        return Ok(());
    }
    // SAFETY: attached to the main interpreter, which `initialize` has checked; `close` is called at its exit.
    let stacks = unsafe { Stacks::new(super::is_attached) }.map_err(PyRuntimeError::new_err)?;
    // Another thread may have been first.
    let _ = STACKS.set(stacks);
    let probe = PyModule::from_code(py, PROBE_SOURCE, c"probe.py", c"torch_spyre._stack_probe")?;
    probe.getattr("probe")?.call1((wrap_pyfunction!(compare, py)?,))?;
    Ok(())
}

/// Compares the caller's stack as read from memory with what CPython says.
#[pyfunction]
fn compare() {
    if let Some(stacks) = STACKS.get() {
        // SAFETY: a Python function is called attached. A difference changes the mode, which is the answer.
        let _ = unsafe { stacks.verify() };
    }
}

/// The site of the calling thread's Python stack; 0 if it has none, or if it is not known. Never waits or attaches.
#[inline]
pub(crate) fn capture() -> u32 {
    match STACKS.get() {
        Some(stacks) if !is_forked() => stacks.capture(),
        _ => 0,
    }
}

/// Tells a device's history where its memory comes from.
struct PythonSites;

impl Sites for PythonSites {
    fn current(&self) -> u32 {
        capture()
    }
}

/// The sites of a history: 0 until [`enable`] was called.
pub(crate) fn sites() -> Arc<dyn Sites> {
    Arc::new(PythonSites)
}

/// The frames of a site, innermost first; at most [`python_stacks::MAX_DEPTH`].
pub(crate) fn frames(site: u32) -> Vec<Frame> {
    match STACKS.get() {
        Some(stacks) if !is_forked() => stacks.frames(site),
        _ => Vec::new(),
    }
}

/// Ends capturing, before CPython frees the states of threads that still run. Called at exit.
pub(crate) fn close() {
    if let Some(stacks) = STACKS.get().filter(|_| !is_forked()) {
        // A thread that still reads after the deadline is stopped, and will not go on before the process has ended.
        let _ = stacks.close();
    }
}

/// How stacks are taken: `mode` ("direct", "attached_only" or "off"), `sites` (stacks and their outer parts that are
/// kept) and `dropped` (stacks that did not fit).
#[pyfunction]
pub(crate) fn stacks_status(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let stacks = STACKS.get();
    let counts = stacks.map(Stacks::counts);
    let dict = PyDict::new(py);
    dict.set_item("mode", stacks.map_or_else(|| "off".to_owned(), |stacks| stacks.mode().to_string()))?;
    dict.set_item("sites", counts.map_or(0, |counts| counts.sites))?;
    dict.set_item("dropped", counts.map_or(0, |counts| counts.dropped))?;
    Ok(dict)
}
