//! A Python function as a pressure hook of the gate.
//!
//! The core may drop the last reference to a hook on any thread, also a detached one that must not attach. Such a
//! function is kept until the next call of [`release_dropped`] from Python.

use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};

use flex::Unlocked;
use flex::fork::is_forked;
use flex::gate::{HookEvent, HookOutcome, PressureHook};
use flex::pressure::PressureCause;
use pyo3::prelude::*;

use super::ffi::{self, Ended, PendingException};

/// Functions whose hooks were dropped on detached threads. A leaf: nothing is dropped or called under it.
static DROPPED: Mutex<Vec<Py<PyAny>>> = Mutex::new(Vec::new());

/// What a pressure hook is told.
#[pyclass(module = "torch_spyre._C", frozen, get_all)]
pub(crate) struct PressureEvent {
    /// Index of the exhausted device.
    device: u32,
    /// Bytes asked for.
    requested_bytes: u64,
    /// Free bytes in the regions the request may use.
    free_bytes: u64,
    /// The largest free block in them, in bytes.
    largest_free_bytes: u64,
    /// How many hooks have been called for the request, this one included.
    attempt: u32,
    /// "exhausted", or "fragmented": enough is free, but no block fits.
    cause: &'static str,
}

#[pymethods]
impl PressureEvent {
    fn __repr__(&self) -> String {
        format!(
            "PressureEvent(device={}, requested_bytes={}, free_bytes={}, largest_free_bytes={}, attempt={}, cause={:?})",
            self.device,
            self.requested_bytes,
            self.free_bytes,
            self.largest_free_bytes,
            self.attempt,
            self.cause
        )
    }
}

impl From<&HookEvent> for PressureEvent {
    fn from(event: &HookEvent) -> Self {
        PressureEvent {
            device: event.device,
            requested_bytes: event.requested_bytes,
            free_bytes: event.free_bytes,
            largest_free_bytes: event.largest_free_bytes,
            attempt: event.attempt,
            cause: match event.cause {
                PressureCause::Exhausted => "exhausted",
                PressureCause::Fragmented => "fragmented",
            },
        }
    }
}

/// A Python function as the gate calls it.
pub(crate) struct PythonHook {
    function: ManuallyDrop<Py<PyAny>>,
}

impl PythonHook {
    pub(crate) fn new(function: Py<PyAny>) -> Self {
        PythonHook { function: ManuallyDrop::new(function) }
    }
}

impl PressureHook for PythonHook {
    fn run(&self, _proof: &Unlocked<'_>, event: &HookEvent) -> HookOutcome {
        let pending = PendingException::take();
        // SAFETY: the gate calls hooks attached.
        let py = unsafe { Python::assume_attached() };
        let ended = match ffi::uncollected(|| (PressureEvent::from(event),).into_pyobject(py)) {
            // SAFETY: attached; both objects are live.
            Ok(arguments) => unsafe {
                let arguments = arguments.into_any().into_ptr();
                let ended = ffi::call(self.function.as_ptr(), arguments);
                if !is_forked() {
                    ffi::release(arguments);
                }
                ended
            },
            Err(_) => Ended::Raised,
        };
        if !is_forked() {
            pending.restore();
        }
        match ended {
            Ended::Returned(()) => HookOutcome::Done,
            Ended::Interrupted => HookOutcome::Interrupted,
            Ended::Raised | Ended::Forked => HookOutcome::Failed,
        }
    }
}

impl Drop for PythonHook {
    fn drop(&mut self) {
        // SAFETY: dropped once, here.
        let function = unsafe { ManuallyDrop::take(&mut self.function) };
        if is_forked() {
            std::mem::forget(function);
        } else {
            DROPPED.lock().unwrap_or_else(PoisonError::into_inner).push(function);
        }
    }
}

/// Runs `body` with the lock held, for tests of what a forked child does then.
pub(crate) fn while_locked(body: impl FnOnce()) {
    let _dropped = DROPPED.lock().unwrap_or_else(PoisonError::into_inner);
    body();
}

/// Gives up functions whose hooks are gone. Nothing in a forked child, where the lock may be held for ever.
pub(crate) fn release_dropped(_py: Python<'_>) {
    if is_forked() {
        return;
    }
    let dropped = std::mem::take(&mut *DROPPED.lock().unwrap_or_else(PoisonError::into_inner));
    drop(dropped);
}
