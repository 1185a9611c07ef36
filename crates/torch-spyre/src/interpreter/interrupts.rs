//! Exceptions that are the program's although our code met them: `KeyboardInterrupt` out of a hook or a collection,
//! what a signal handler raised in the middle of our own Python functions, and what another thread sent to the one that
//! ran them. They are raised again, in the main thread or in the one they were sent to, when the request, or the
//! collection, has ended.
//!
//! CPython runs signal handlers in the main thread between any two bytecodes, so also in the functions that look at
//! garbage (`torch_spyre/_cycles.py`, `_held.py`). Without such a function they would run in the program. What they
//! raise there is told from a mistake of ours by its traceback: our functions call no Python code but their own.
//!
//! A kept exception has lost the part of its traceback that is ours: that would keep what we looked at alive.
//!
//! An exception that is sent to a thread (`PyThreadState_SetAsyncExc`) is a class, made between any two bytecodes too,
//! so in a frame of ours. It is told from a mistake of ours by being a class of the program's, or by having no
//! arguments: built-in exceptions that mistakes raise have some.
//!
//! Locks: `KEPT` and `SENT`, leaves, held to add an exception or to take one.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use flex::fork::is_forked;
use pyo3::exceptions::{PyAssertionError, PyException, PyKeyboardInterrupt, PyMemoryError, PyRecursionError};
use pyo3::intern;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::ffi::{self, PendingException};
use super::{is_attached, is_collector_thread, own_ident};

/// How many exceptions are looked at that an exception followed on.
const MOST_CONTEXTS: usize = 16;

/// Exceptions to raise in the main thread, the oldest first; `None` is `KeyboardInterrupt`.
static KEPT: Mutex<VecDeque<Option<Py<PyAny>>>> = Mutex::new(VecDeque::new());

/// Exceptions to raise in other threads: what Python calls the thread, and the class.
static SENT: Mutex<Vec<(u64, Py<PyAny>)>> = Mutex::new(Vec::new());

/// There was no room in CPython's queue.
static WAITING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// What was kept is to be raised once what this thread does here has ended.
    static NOTED: Cell<bool> = const { Cell::new(false) };
}

/// Raises what was kept: for the calling thread in it, and for the main thread the oldest as soon as that runs Python
/// code again, whatever SIGINT does. Needs no attachment.
pub(super) fn raise() {
    if is_forked() {
        return;
    }
    if is_attached() {
        send_to(Some(own_ident()));
    }
    // One after the other: both are leaves.
    let is_kept = !lock(&KEPT).is_empty();
    let is_sent = !lock(&SENT).is_empty();
    if is_kept || is_sent {
        // SAFETY: may be called without a thread state; the function stays where it is.
        let queued = unsafe { pyo3::ffi::Py_AddPendingCall(Some(raise_oldest), ptr::null_mut()) } == 0;
        WAITING.store(!queued, Ordering::Relaxed);
    }
}

/// Sends what was kept for one thread, or for all of them. The calling thread is attached.
fn send_to(thread: Option<u64>) {
    let is_wanted = |(other, _): &mut (u64, Py<PyAny>)| thread.is_none_or(|thread| thread == *other);
    let sent: Vec<_> = lock(&SENT).extract_if(.., is_wanted).collect();
    // SAFETY: the caller's contract.
    let py = unsafe { Python::assume_attached() };
    for (thread, class) in sent {
        // SAFETY: attached; the class is alive.
        unsafe { ffi::send_exception(thread, class.bind(py).as_ptr()) };
        drop(class.into_bound(py));
    }
}

fn lock<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `body` with both locks held, for tests of what a forked child does then.
pub(crate) fn while_locked(body: impl FnOnce()) {
    let (_kept, _sent) = (lock(&KEPT), lock(&SENT));
    body();
}

/// Raises what there was no room for before.
pub(super) fn raise_waiting() {
    if WAITING.swap(false, Ordering::Relaxed) {
        raise();
    }
}

/// `KeyboardInterrupt` came out of what this thread runs.
pub(super) fn keep_interrupt() {
    lock(&KEPT).push_back(None);
}

/// An exception was kept that came out of what this thread does; it can be raised when that has ended.
pub(super) fn note() {
    NOTED.set(true);
}

/// Whether an exception was noted on this thread since the last call.
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
    // Only of threads that were detached at the end of their request: others have sent theirs themselves.
    send_to(None);
    let Some(oldest) = lock(&KEPT).pop_front() else { return 0 };
    raise(); // What is left.
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
    // Runs no Python code but what is called when an object that a frame of ours had goes.
    let kept = ffi::uncollected(|| is_of_the_program(function, &error)) && strip(function, &error).is_ok();
    if !kept {
        pending.restore();
        return false;
    }
    if is_main_thread() || is_collector_thread() {
        lock(&KEPT).push_back(Some(error.unbind()));
    } else {
        let class = error.get_type().into_any().unbind();
        lock(&SENT).push((own_ident(), class));
        drop(error);
    }
    pending.release();
    true
}

fn is_main_thread() -> bool {
    // SAFETY: both calls have no precondition.
    unsafe { libc::gettid() == libc::getpid() }
}

fn is_of_the_program(function: &Bound<'_, PyAny>, error: &Bound<'_, PyAny>) -> bool {
    if error.is_instance_of::<PyKeyboardInterrupt>() {
        return true;
    }
    // Limits of the machine are met anywhere, and a panic of ours is ours. Nobody sends anything to a collector thread.
    if is_collector_thread()
        || error.is_instance_of::<PyMemoryError>()
        || error.is_instance_of::<PyRecursionError>()
        || error.is_instance_of::<PanicException>()
    {
        return false;
    }
    // Handlers run on the main thread.
    !error.is_instance_of::<PyException>()
        || was_sent(error)
        || (is_main_thread() && matches!(foreign_traceback(function, error, |_| ()), Ok(Some(_))))
}

/// Whether an exception that was raised in a function of ours was sent to this thread; see above.
fn was_sent(error: &Bound<'_, PyAny>) -> bool {
    // SAFETY: attached; the type is alive.
    let flags = unsafe { pyo3::ffi::PyType_GetFlags(pyo3::ffi::Py_TYPE(error.as_ptr())) };
    if flags & pyo3::ffi::Py_TPFLAGS_HEAPTYPE != 0 {
        return true; // None of the built-in ones.
    }
    let arguments = error.getattr(intern!(error.py(), "args"));
    !error.is_instance_of::<PyAssertionError>()
        && arguments.is_ok_and(|arguments| arguments.is_empty().unwrap_or(false))
}

/// Cuts off the part of an exception's traceback that is ours, and has our frames drop what they refer to.
fn strip(function: &Bound<'_, PyAny>, error: &Bound<'_, PyAny>) -> PyResult<()> {
    // SAFETY: attached, and a live frame.
    let clear = |frame: &Bound<'_, PyAny>| unsafe { ffi::clear_frame(frame.as_ptr()) };
    let mut current = error.clone();
    for _ in 0..MOST_CONTEXTS {
        let foreign = foreign_traceback(function, &current, clear)?;
        let foreign = foreign.unwrap_or_else(|| error.py().None().into_bound(error.py()));
        // SAFETY: attached, and a live exception; what its last traceback was is a traceback, or None.
        unsafe { ffi::set_traceback(current.as_ptr(), foreign.as_ptr()) };
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
