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
/// CPython says, on stacks of every form, before any is; if they differ, stacks are taken on attached threads only.
///
/// Threads that come at the same time each compare. What a signal's handler raises in the middle of it leaves stacks
/// off, and the next call begins again.
///
/// # Errors
/// RuntimeError if this interpreter lacks a function that is needed; what a signal's handler raises.
pub(crate) fn enable(py: Python<'_>) -> PyResult<()> {
    let stacks = match STACKS.get() {
        Some(stacks) => stacks,
        None => {
            // SAFETY: attached to the main interpreter, which `initialize` has checked; `close` is called at its exit.
            let stacks = unsafe { Stacks::new(super::is_attached) }.map_err(PyRuntimeError::new_err)?;
            // Another thread may have been first.
            STACKS.get_or_init(|| stacks)
        }
    };
    if stacks.mode().is_none() {
        let probe = PyModule::from_code(py, PROBE_SOURCE, c"probe.py", c"torch_spyre._stack_probe")?;
        probe.getattr("probe")?.call1((wrap_pyfunction!(compare, py)?,))?;
        stacks.trust();
    }
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

/// Ends capturing, before CPython frees the states of threads that still run. Called at exit, detached. False if a
/// thread that was just reading has been stopped for ten seconds, as by a debugger.
pub(crate) fn close() -> bool {
    STACKS.get().filter(|_| !is_forked()).is_none_or(Stacks::close)
}

/// How stacks are taken: `mode` ("direct", "attached_only" or "off"), `sites` (stacks and their outer parts that are
/// kept) and `dropped` (stacks that did not fit).
#[pyfunction]
pub(crate) fn stacks_status(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let stacks = STACKS.get();
    let mode = stacks.and_then(Stacks::mode);
    let counts = stacks.map(Stacks::counts);
    let dict = PyDict::new(py);
    dict.set_item("mode", mode.map_or_else(|| "off".to_owned(), |mode| mode.to_string()))?;
    dict.set_item("sites", counts.map_or(0, |counts| counts.sites))?;
    dict.set_item("dropped", counts.map_or(0, |counts| counts.dropped))?;
    Ok(dict)
}
