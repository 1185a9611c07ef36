//! A Python function as an allocator's memory-pressure callback.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flex::pressure::{MemoryPressureCallback, PressureCause, Verdict};
use flex::{AllocatorGuard, Unlocked};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::interpreter;

/// What a memory-pressure callback is told.
#[pyclass(module = "torch_spyre.flex", frozen, get_all)]
pub(crate) struct PressureRequest {
    /// Bytes asked for.
    requested_bytes: u64,
    /// Free bytes in the regions it may use.
    free_bytes: u64,
    /// The largest free block in them, in bytes.
    largest_free_bytes: u64,
    /// How often the callback has been called for this request, from 1.
    attempt: u32,
    /// "exhausted", or "fragmented": enough is free, but no block fits.
    cause: &'static str,
    /// The domains it may use.
    domains: Vec<u32>,
}

impl PressureRequest {
    fn of(request: &flex::pressure::PressureRequest) -> Self {
        PressureRequest {
            requested_bytes: request.requested_bytes(),
            free_bytes: request.free_bytes(),
            largest_free_bytes: request.largest_free_bytes(),
            attempt: request.attempt(),
            cause: match request.cause() {
                PressureCause::Exhausted => "exhausted",
                PressureCause::Fragmented => "fragmented",
            },
            domains: request.domains().iter().map(|domain| domain.0).collect(),
        }
    }
}

/// The one reference to the Python function: shared with the Python allocator object, so that the collector can see
/// cycles through it.
#[derive(Default)]
pub(super) struct Slot(Mutex<Option<Py<PyAny>>>);

impl Slot {
    /// A leaf: nothing is dropped or called under it.
    fn lock(&self) -> MutexGuard<'_, Option<Py<PyAny>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the function and returns the previous one.
    pub(super) fn replace(&self, function: Option<Py<PyAny>>) -> Option<Py<PyAny>> {
        std::mem::replace(&mut *self.lock(), function)
    }

    /// For the collector, which must not wait.
    pub(super) fn visit<E>(&self, visit: impl FnOnce(&Py<PyAny>) -> Result<(), E>) -> Result<(), E> {
        match self.0.try_lock().ok().as_deref() {
            Some(Some(function)) => visit(function),
            _ => Ok(()),
        }
    }
}

thread_local! {
    /// What the callback raised during the allocation that runs on this thread.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// What the callback raised since the last call on this thread.
pub(super) fn take_raised() -> Option<PyErr> {
    RAISED.take()
}

/// Whether an exception asks the program to stop, rather than reporting a fault of the callback.
pub(super) fn is_interrupt(py: Python<'_>, error: &PyErr) -> bool {
    !error.is_instance_of::<PyException>(py)
}

/// The callback the core calls.
pub(super) struct PythonCallback {
    pub(super) slot: Arc<Slot>,
}

impl MemoryPressureCallback for PythonCallback {
    fn on_pressure(
        &self,
        guard: &mut AllocatorGuard<'_>,
        request: &mut flex::pressure::PressureRequest,
    ) -> Verdict {
        let told = PressureRequest::of(request);
        match guard.unlocked(|proof| self.call(proof, told)) {
            Ok(true) => Verdict::Retry,
            _ => Verdict::GiveUp,
        }
    }
}

impl PythonCallback {
    /// Calls the function; true if it returned something true, so that it is worth calling again.
    fn call(&self, proof: &Unlocked<'_>, request: PressureRequest) -> bool {
        interpreter::while_attached(proof, |py| {
            let Some(function) = self.slot.lock().as_ref().map(|function| function.clone_ref(py)) else {
                return false;
            };
            let called = function.bind(py).call1((request,)).and_then(|again| again.is_truthy());
            called.unwrap_or_else(|error| {
                RAISED.set(Some(error));
                false
            })
        })
        .unwrap_or(false)
    }
}
