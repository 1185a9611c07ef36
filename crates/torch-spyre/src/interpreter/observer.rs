//! Our entries in `gc.callbacks`: what is known about collections, ours and others'.
//!
//! A collection of ours really ran if both its start and its stop were seen *on the thread that asked, during the
//! call*; `gc.collect()` returns 0 at once while another thread collects, and `gc.get_stats()` also counts that
//! one. Two entries, the first and the last of the list, bracket the callbacks of others, so that an allocation in
//! one of those is seen to be inside a collection.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use flex::gate::Gate;
use flex::pressure::collecting::{self, Gaps};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::{cycles, ffi};

thread_local! {
    static STARTS: Cell<u64> = const { Cell::new(0) };
    static STOPS: Cell<u64> = const { Cell::new(0) };
}

/// Stops seen on any thread.
static ALL_STOPS: AtomicU64 = AtomicU64::new(0);

/// How often our entries were found removed.
static GAPS: AtomicU64 = AtomicU64::new(0);

/// Woken when a collection stops.
static GATE: OnceLock<Weak<Gate>> = OnceLock::new();

/// The entries and the list they belong to.
pub(super) struct Observer {
    callbacks: Py<PyAny>,
    first: Py<PyAny>,
    last: Py<PyAny>,
}

impl Observer {
    /// Makes the entries and puts them into `gc.callbacks`.
    pub(super) fn install(py: Python<'_>) -> PyResult<Self> {
        let callbacks = py.import("gc")?.getattr("callbacks")?.cast_into::<PyList>()?;
        let observer = Observer {
            callbacks: callbacks.into_any().unbind(),
            first: wrap_pyfunction!(before_others, py)?.into_any().unbind(),
            last: wrap_pyfunction!(after_others, py)?.into_any().unbind(),
        };
        observer.ensure_installed();
        Ok(observer)
    }

    /// Puts entries back that someone removed, and counts that; whether the last one was missing. The calling thread is
    /// attached and has no pending exception.
    pub(super) fn ensure_installed(&self) -> bool {
        // SAFETY: the three objects are kept alive by `self`; the list is the one the collector reads.
        unsafe {
            let first = ffi::ensure_in_list(self.callbacks.as_ptr(), self.first.as_ptr(), true);
            let last = ffi::ensure_in_list(self.callbacks.as_ptr(), self.last.as_ptr(), false);
            if first || last {
                GAPS.fetch_add(1, Ordering::SeqCst);
            }
            last
        }
    }
}

/// Whom to wake when a collection stops.
pub(super) fn notify(gate: &Arc<Gate>) {
    let _ = GATE.set(Arc::downgrade(gate));
}

/// Starts and stops seen on the calling thread so far.
pub(super) fn seen_here() -> (u64, u64) {
    (STARTS.get(), STOPS.get())
}

/// Stops seen on any thread so far.
pub(super) fn stops() -> u64 {
    ALL_STOPS.load(Ordering::SeqCst)
}

/// How often our entries were found removed so far.
pub(super) fn gaps() -> Gaps {
    Gaps(GAPS.load(Ordering::SeqCst))
}

/// The first entry: called before those of others.
#[pyfunction]
fn before_others(phase: &str, info: &Bound<'_, PyDict>) {
    if phase == "start" {
        STARTS.set(STARTS.get() + 1);
        collecting::begin_foreign(gaps());
        cycles::collection_begins();
    } else {
        cycles::after_collecting(found(info));
    }
}

/// The last entry: called after those of others.
#[pyfunction]
fn after_others(phase: &str, info: &Bound<'_, PyDict>) {
    if phase == "start" {
        cycles::before_collecting();
        return;
    }
    // Done already, unless somebody has removed the first entry meanwhile.
    cycles::after_collecting(found(info));
    cycles::collection_ends(number(info, "generation"), found(info));
    STOPS.set(STOPS.get() + 1);
    collecting::end_foreign();
    ALL_STOPS.fetch_add(1, Ordering::SeqCst);
    if let Some(gate) = GATE.get().and_then(Weak::upgrade) {
        gate.collection_stopped();
    }
}

/// How many dead objects a collection has found.
fn found(info: &Bound<'_, PyDict>) -> usize {
    number(info, "collected") + number(info, "uncollectable")
}

/// A number that the collector says about a collection.
fn number(info: &Bound<'_, PyDict>, name: &str) -> usize {
    let value = info.get_item(name).ok().flatten();
    value.and_then(|value| value.extract().ok()).unwrap_or(0)
}
