//! Exceptions that are the program's although our code met them: `KeyboardInterrupt` out of a hook or a collection, and
//! what a signal handler raised in the middle of our own Python functions. They are raised again in the main thread
//! when the request, or the collection, has ended.
//!
//! CPython runs signal handlers in the main thread between any two bytecodes, so also in the functions that look at
//! garbage (`torch_spyre/_cycles.py`, `_held.py`). Without such a function they would run in the program. What they
//! raise there is told from a mistake of ours by its traceback: our functions call no Python code but their own.
//!
//! A kept exception has lost the part of its traceback that is ours: that would keep what we looked at alive.
//!
//! Lock: `KEPT`, a leaf, held to add an exception or to take one.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use flex::fork::is_forked;
use pyo3::exceptions::{PyException, PyKeyboardInterrupt, PyMemoryError, PyRecursionError};
use pyo3::intern;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::ffi::{PendingException, parked};

/// How many exceptions are looked at that an exception followed on.
const MOST_CONTEXTS: usize = 16;

/// Exceptions to raise, the oldest first. Each has a call in CPython's queue, or is one of those behind such a one.
static KEPT: Mutex<VecDeque<Py<PyAny>>> = Mutex::new(VecDeque::new());

/// Interrupts that found CPython's queue full.
static WAITING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// An interrupt is to be raised once what this thread does here has ended.
    static NOTED: Cell<bool> = const { Cell::new(false) };
}

/// Raises the oldest kept exception, or `KeyboardInterrupt` if there is none, as soon as the main thread runs Python
/// code again, whatever SIGINT does. Needs no attachment.
pub(super) fn raise() {
    // SAFETY: may be called without a thread state; the function stays where it is.
    let queued = unsafe { pyo3::ffi::Py_AddPendingCall(Some(raise_oldest), ptr::null_mut()) } == 0;
    WAITING.store(!queued, Ordering::Relaxed);
}

/// Raises an interrupt for which there was no room before.
pub(super) fn raise_waiting() {
    if WAITING.swap(false, Ordering::Relaxed) {
        raise();
    }
}

/// An interrupt came out of what this thread does; it can be raised when that has ended.
pub(super) fn note() {
    NOTED.set(true);
}

/// Whether an interrupt was noted on this thread since the last call.
pub(super) fn take_noted() -> bool {
    NOTED.take()
}

/// Raises what was noted on this thread.
pub(crate) fn raise_noted() {
    if take_noted() {
        raise();
    }
}

/// CPython calls it attached, on the main thread, between two bytecodes.
extern "C" fn raise_oldest(_: *mut c_void) -> c_int {
    // What the parent was about to raise is not the child's, and a lock may be held for ever there.
    if is_forked() {
        return 0;
    }
    let (oldest, more) = {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        (kept.pop_front(), !kept.is_empty())
    };
    if more {
        raise();
    }
    // SAFETY: attached, as said above.
    let py = unsafe { Python::assume_attached() };
    match oldest {
        Some(error) => PyErr::from_value(error.into_bound(py)).restore(py),
        None => PyKeyboardInterrupt::new_err(()).restore(py),
    }
    -1
}

/// Takes the pending exception, which a Python function of ours has raised, and keeps it if it is the program's;
/// otherwise it stays pending. The calling thread is attached.
pub(super) fn keep_pending(function: &Bound<'_, PyAny>) -> bool {
    let mut pending = PendingException::take();
    let Some(error) = pending.value(function.py()) else { return false };
    // Runs no Python code but what is called when an object of ours goes.
    let kept = parked(|| is_of_the_program(function, &error) && strip(function, &error).is_ok());
    if kept {
        pending.release();
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).push_back(error.unbind());
    } else {
        pending.restore();
    }
    kept
}

fn is_of_the_program(function: &Bound<'_, PyAny>, error: &Bound<'_, PyAny>) -> bool {
    if error.is_instance_of::<PyKeyboardInterrupt>() {
        return true;
    }
    // Handlers run on the main thread; what others may be sent is to be raised there and nowhere else.
    // SAFETY: both calls have no precondition.
    let is_main = unsafe { libc::gettid() == libc::getpid() };
    // Limits of the machine are met anywhere, and a panic of ours is ours.
    if !is_main
        || error.is_instance_of::<PyMemoryError>()
        || error.is_instance_of::<PyRecursionError>()
        || error.is_instance_of::<PanicException>()
    {
        return false;
    }
    !error.is_instance_of::<PyException>()
        || matches!(foreign_traceback(function, error, |_| ()), Ok(Some(_)))
}

/// Cuts off the part of an exception's traceback that is ours, and has our frames drop what they refer to.
fn strip(function: &Bound<'_, PyAny>, error: &Bound<'_, PyAny>) -> PyResult<()> {
    let clear = |frame: &Bound<'_, PyAny>| drop(frame.call_method0(intern!(frame.py(), "clear")));
    let mut current = error.clone();
    for _ in 0..MOST_CONTEXTS {
        let foreign = foreign_traceback(function, &current, clear)?;
        current.setattr(intern!(error.py(), "__traceback__"), foreign)?;
        current = current.getattr(intern!(error.py(), "__context__"))?;
        if current.is_none() {
            break;
        }
    }
    Ok(())
}

/// An exception's traceback from the first frame on that is not of our files, those in the folder of `function`'s.
/// `visit` gets our frames before that.
fn foreign_traceback<'py>(
    function: &Bound<'py, PyAny>,
    error: &Bound<'py, PyAny>,
    visit: impl Fn(&Bound<'py, PyAny>),
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = function.py();
    let folder_of = |code: Bound<'py, PyAny>| {
        let file = code.getattr(intern!(py, "co_filename"))?.cast_into::<PyString>()?;
        PyResult::Ok(Path::new(&*file.to_string_lossy()).parent().map(Path::to_path_buf))
    };
    let ours = folder_of(function.getattr(intern!(py, "__code__"))?)?;
    let mut traceback = error.getattr(intern!(py, "__traceback__"))?;
    while !traceback.is_none() {
        let frame = traceback.getattr(intern!(py, "tb_frame"))?;
        if folder_of(frame.getattr(intern!(py, "f_code"))?)? != ours {
            return Ok(Some(traceback));
        }
        visit(&frame);
        traceback = traceback.getattr(intern!(py, "tb_next"))?;
    }
    Ok(None)
}
