//! CPython as the gate's [`Reclaimer`].
//!
//! [`ffi`] calls CPython and keeps what it may unwind out of Rust frames; [`observer`] sees collections;
//! [`interrupts`] keeps exceptions for the program; [`stacks`] reads the Python stack of a thread; [`cycles`] says who
//! held what collections free, with [`stopped_world`] where there is no GIL; [`held`] says at a failure what still
//! holds memory, with [`frozen`] for what the collector does not look at.
//!
//! Locks: leaves only, described in the file of each; here that of the list of collector threads. Every call that
//! attaches, detaches or runs Python code takes the proof that the allocator mutex is free.

pub(crate) mod cycles;
mod ffi;
mod frozen;
pub(crate) mod held;
pub(crate) mod hook;
pub(crate) mod interrupts;
mod observer;
pub(crate) mod stacks;
mod stopped_world;

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use flex::Unlocked;
use flex::fork::is_forked;
use flex::gate::{Collected, Entry, FailedRequest, Gate, Generation, PolicySettings, Reclaimer, ThreadToken};
use flex::pressure::collecting::{self, Gaps, GateCollection};
use flex::pressure::{Hints, SkipReason};
use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

pub(crate) use ffi::uncollected;
use ffi::{Ended, PendingException, ThreadState};
use observer::Observer;

/// How often a thread that is held at exit looks whether finalization has begun.
const EXIT_POLL: Duration = Duration::from_millis(1);

/// The interpreter that loaded this module, and its collector as it was at import: users patch `gc.collect`.
struct PythonReclaimer {
    collect: Py<PyAny>,
    young: Py<PyAny>,
    full: Py<PyAny>,
    /// Lists the threads that run a Python frame.
    current_frames: Py<PyAny>,
    /// Lists all threads, with what they handle.
    current_exceptions: Py<PyAny>,
    observer: Observer,
    /// What Python calls the collector threads. A leaf: held for a look, or to add one.
    collectors: Mutex<Vec<u64>>,
    /// There are no generations: a young collection is a full one.
    free_threaded: bool,
}

/// Refuses sub-interpreters. The Python package does so before; this is for who loads the extension by its file.
pub(crate) fn require_main(_py: Python<'_>) -> PyResult<()> {
    if ffi::is_main_interpreter() {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "torch_spyre cannot be used in a sub-interpreter; import it in the main interpreter of the process",
    ))
}

/// Makes the gate of this interpreter.
pub(crate) fn new_gate(py: Python<'_>, settings: PolicySettings) -> PyResult<Arc<Gate>> {
    ffi::resolve().map_err(PyImportError::new_err)?;
    let reclaimer = PythonReclaimer {
        collect: py.import("gc")?.getattr("collect")?.unbind(),
        young: (1,).into_pyobject(py)?.into_any().unbind(),
        full: (2,).into_pyobject(py)?.into_any().unbind(),
        current_frames: py.import("sys")?.getattr("_current_frames")?.unbind(),
        current_exceptions: py.import("sys")?.getattr("_current_exceptions")?.unbind(),
        collectors: Mutex::default(),
        observer: Observer::install(py)?,
        free_threaded: is_free_threaded(py)?,
    };
    cycles::install(py, reclaimer.free_threaded)?;
    held::install(py)?;
    if reclaimer.free_threaded {
        stopped_world::install(py)?;
    }
    let gate = Gate::new(Arc::new(reclaimer), settings);
    observer::notify(&gate);
    Ok(gate)
}

fn is_free_threaded(py: Python<'_>) -> PyResult<bool> {
    let enabled = match py.import("sys")?.getattr("_is_gil_enabled") {
        Ok(is_enabled) => is_enabled.call0()?.extract()?,
        Err(_) => true,
    };
    Ok(!enabled)
}

/// Whether the calling thread is attached, whatever PyO3 believes.
pub(crate) fn is_attached() -> bool {
    !ffi::attached_state().is_null()
}

/// Runs `body` if the calling thread is attached; a detached one must not attach in the middle of an allocation.
pub(crate) fn while_attached<R>(_proof: &Unlocked<'_>, body: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    if !is_attached() {
        return None;
    }
    // SAFETY: just asked of CPython itself.
    Some(ffi::parked(|| body(unsafe { Python::assume_attached() })))
}

/// Runs `body`, which may wait and uses no Python, with the calling thread detached, as `Python::detach` does. That
/// attaches with a call that must not be unwound, as it would be at exit on a daemon thread.
pub(crate) fn detached<R>(_py: Python<'_>, body: impl FnOnce() -> R) -> R {
    struct Attach(ThreadState);
    impl Drop for Attach {
        fn drop(&mut self) {
            ffi::attach(self.0);
        }
    }
    let _attach = Attach(ffi::detach());
    body()
}

thread_local! {
    static IS_COLLECTOR: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is one of the gate's, which collects for others.
#[inline]
pub(crate) fn is_collector_thread() -> bool {
    IS_COLLECTOR.get()
}

/// Whether the interpreter is shutting down.
pub(crate) fn is_finalizing() -> bool {
    ffi::is_finalizing()
}

/// What Python calls the calling thread.
fn own_ident() -> u64 {
    // SAFETY: names the calling thread; no precondition.
    unsafe { libc::pthread_self() }
}

/// What Python calls the threads that a function of `sys` lists. The calling thread is attached and has no pending
/// exception.
fn threads(function: &Py<PyAny>) -> Option<Vec<u64>> {
    // SAFETY: the caller's contract.
    let py = unsafe { Python::assume_attached() };
    // SAFETY: attached; `function` is alive, and the result is a new reference.
    let list = unsafe { Bound::from_owned_ptr_or_opt(py, ffi::list_threads(function.as_ptr())) }?;
    let idents = list.cast_into::<PyDict>().ok()?.keys();
    idents.iter().map(|ident| ident.extract::<u64>().ok()).collect()
}

fn token(state: ThreadState) -> ThreadToken {
    ThreadToken(state as usize)
}

impl Reclaimer for PythonReclaimer {
    fn entry(&self) -> Entry {
        interrupts::raise_waiting();
        let attached = ffi::attached_state();
        let own = if attached.is_null() { ffi::own_state() } else { attached };
        let unavailable = if ffi::is_finalizing() {
            Some(SkipReason::Finalizing)
        } else if !own.is_null() && !ffi::is_ours(own) {
            Some(SkipReason::Interpreter)
        } else {
            None
        };
        Entry {
            attached: !attached.is_null(),
            thread: token(own),
            thread_ident: own_ident(),
            in_collection: collecting::foreign(),
            unavailable,
        }
    }

    fn collect(&self, _proof: &Unlocked<'_>, generation: Generation) -> Collected {
        let pending = PendingException::take();
        if self.observer.ensure_installed() {
            cycles::repair();
        }
        let (starts, stops) = observer::seen_here();
        let arguments = match generation {
            Generation::Young => &self.young,
            Generation::Full => &self.full,
        };
        let began = Instant::now();
        let mark = GateCollection::begin();
        // SAFETY: attached; both objects are kept alive by `self`.
        let ended = unsafe { ffi::call_for_integer(self.collect.as_ptr(), arguments.as_ptr()) };
        drop(mark);
        let elapsed = began.elapsed();
        if is_forked() {
            return Collected { ran: false, interrupted: false, objects: 0, elapsed };
        }
        let (starts_now, stops_now) = observer::seen_here();
        // One that began here ended here. Its end may be unseen because Python code in its middle removed our entry.
        let ended_here = stops_now > stops || self.observer.ensure_installed();
        if stops_now == stops && ended_here {
            cycles::repair();
        }
        pending.restore();
        let ran = starts_now > starts && ended_here;
        let objects = match ended {
            Ended::Returned(Some(count)) => u64::try_from(count).unwrap_or(0),
            _ => 0,
        };
        let interrupted = interrupts::take_noted() || ended == Ended::Interrupted;
        Collected { ran, interrupted, objects, elapsed }
    }

    fn collector_enabled(&self, _proof: &Unlocked<'_>) -> bool {
        ffi::collector_enabled()
    }

    fn hints(&self, _proof: &Unlocked<'_>, failed: &FailedRequest) -> Hints {
        let pending = PendingException::take();
        // SAFETY: the reclaimer's contract: the calling thread is attached.
        let py = unsafe { Python::assume_attached() };
        let mut hints = held::hints(py, failed.device, failed.deadline);
        if failed.may_have_garbage && !is_forked() {
            hints.dead_cycles = cycles::dead::hint(py, failed.device, failed.deadline);
        }
        interrupts::raise_noted();
        if !is_forked() {
            pending.restore();
        }
        hints
    }

    fn detached(&self, _proof: &Unlocked<'_>, body: &mut dyn FnMut()) {
        // SAFETY: attached, by the contract.
        detached(unsafe { Python::assume_attached() }, body);
    }

    fn attached(&self, _proof: &Unlocked<'_>, thread: ThreadToken, body: &mut dyn FnMut()) {
        struct Detach;
        impl Drop for Detach {
            fn drop(&mut self) {
                ffi::detach();
            }
        }
        ffi::attach(thread.0 as ThreadState);
        let _detach = Detach;
        body();
    }

    fn new_thread(&self, _proof: &Unlocked<'_>) -> ThreadToken {
        IS_COLLECTOR.set(true);
        self.collectors.lock().unwrap_or_else(PoisonError::into_inner).push(own_ident());
        token(ffi::new_state())
    }

    fn is_alone(
        &self,
        _proof: &Unlocked<'_>,
        requester: &Entry,
        _ignore: &dyn Fn(ThreadToken) -> bool,
    ) -> bool {
        if requester.thread.0 == 0 {
            return false;
        }
        // A thread that runs no Python frame, a resting collector or a parked worker of autograd's, cannot hold the
        // interpreter.
        threads(&self.current_frames).is_some_and(|running| {
            running.iter().all(|ident| *ident == requester.thread_ident || *ident == own_ident())
        })
    }

    fn has_other_threads(&self, _proof: &Unlocked<'_>, _ignore: &dyn Fn(ThreadToken) -> bool) -> bool {
        let pending = PendingException::take();
        let threads = threads(&self.current_exceptions);
        pending.restore();
        let collectors = self.collectors.lock().unwrap_or_else(PoisonError::into_inner);
        threads.is_none_or(|threads| {
            threads.iter().any(|ident| *ident != own_ident() && !collectors.contains(ident))
        })
    }

    fn is_finalizing(&self) -> bool {
        ffi::is_finalizing()
    }

    fn young_is_cheap(&self) -> bool {
        !self.free_threaded
    }

    fn gaps(&self) -> Gaps {
        observer::gaps()
    }

    fn collections_stopped(&self) -> u64 {
        observer::stops()
    }

    /// By the time `atexit` runs every thread but daemons has been joined. A detached daemon that returned to torch
    /// now would wait for the interpreter in a destructor that must not unwind, and end the process.
    fn hold_at_exit(&self, entry: &Entry, deadline: Instant) {
        // SAFETY: both calls have no precondition.
        let is_main = unsafe { libc::gettid() == libc::getpid() };
        if entry.attached || entry.thread.0 == 0 || is_main || is_forked() {
            return;
        }
        while Instant::now() < deadline {
            if ffi::is_finalizing() {
                ffi::park_for_ever();
            }
            thread::sleep(EXIT_POLL);
        }
    }

    fn raise_interrupt(&self) {
        interrupts::raise();
    }

    fn end_forked_child(&self) -> ! {
        // SAFETY: ends the process without destructors, which would wait for threads that are gone.
        unsafe { libc::_exit(0) }
    }
}
