//! What tests need and programs do not: allocations from native threads and with the interpreter held, frees that find
//! the mutex taken, and a look at who waits at the gate. Python: `torch_spyre._C.testing`.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use flex::FlexError;
use flex::fork::is_forked;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{device, runtime_error};
use crate::interpreter::{self, cycles, hook, interrupts};
use crate::message;
use crate::runtime::{self, DeviceMemory};
use crate::stream;

fn allocate_and_free(device: &DeviceMemory, nbytes: u64) -> Result<(), String> {
    let (handle, _) = device.allocate(nbytes).map_err(|error| describe(error, device))?;
    device.allocator.free_block(handle).map_err(|error| error.to_string())
}

fn describe(error: FlexError, device: &DeviceMemory) -> String {
    match error {
        FlexError::OutOfMemory(oom) => message::out_of_memory(&oom, device),
        other => other.to_string(),
    }
}

/// Allocates and frees `nbytes` with the interpreter held throughout. Returns the error, or None.
#[pyfunction]
pub(crate) fn allocate_attached(index: i32, nbytes: u64) -> PyResult<Option<String>> {
    let device = device(index)?;
    if !interpreter::is_attached() {
        return Err(PyRuntimeError::new_err("a Python function is called attached"));
    }
    Ok(allocate_and_free(device, nbytes).err())
}

/// As `allocate_attached`, with an exception pending, as when a tensor is replaced while one propagates. Returns the
/// error, or None, and the text of the exception that is pending afterwards, or None.
#[pyfunction]
pub(crate) fn allocate_with_pending_exception(
    py: Python<'_>,
    index: i32,
    nbytes: u64,
) -> PyResult<(Option<String>, Option<String>)> {
    let device = device(index)?;
    PyRuntimeError::new_err("pending").restore(py);
    let error = allocate_and_free(device, nbytes).err();
    Ok((error, PyErr::take(py).map(|pending| pending.value(py).to_string())))
}

/// `threads` native threads without a Python thread state each allocate and free `nbytes`, `count` times. Returns
/// their errors. The caller waits detached.
#[pyfunction]
pub(crate) fn allocate_native(
    py: Python<'_>,
    index: i32,
    nbytes: u64,
    threads: usize,
    count: usize,
) -> PyResult<Vec<String>> {
    let device = device(index)?;
    let run = move || (0..count).filter_map(|_| allocate_and_free(device, nbytes).err()).collect::<Vec<_>>();
    interpreter::detached(py, || {
        let workers =
            (0..threads).map(|_| thread::Builder::new().spawn(run)).collect::<Result<Vec<_>, _>>()?;
        let errors =
            workers.into_iter().flat_map(|worker| worker.join().unwrap_or_else(|_| vec!["panicked".into()]));
        Ok(errors.collect())
    })
}

/// One native thread allocates and frees `nbytes` while the caller joins it *with the interpreter held*. Returns
/// its error, or None, and the seconds it took.
#[pyfunction]
pub(crate) fn join_native_attached(index: i32, nbytes: u64) -> PyResult<(Option<String>, f64)> {
    let device = device(index)?;
    let began = Instant::now();
    let worker = thread::Builder::new().spawn(move || allocate_and_free(device, nbytes).err())?;
    let error = worker.join().unwrap_or_else(|_| Some("panicked".into()));
    Ok((error, began.elapsed().as_secs_f64()))
}

/// A detached thread allocates `nbytes` while it holds a lock of its own, and the caller, *attached*, waits for that
/// lock. Returns the thread's error, or None, and the seconds the caller waited.
#[pyfunction]
pub(crate) fn want_lock_of_allocating_thread(index: i32, nbytes: u64) -> PyResult<(Option<String>, f64)> {
    let device = device(index)?;
    let lock = Arc::new(Mutex::new(None));
    let (held, is_held) = mpsc::channel();
    let holder = Arc::clone(&lock);
    let worker = thread::Builder::new().spawn(move || {
        let mut error = holder.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = held.send(());
        *error = allocate_and_free(device, nbytes).err();
    })?;
    is_held.recv().map_err(|_| PyRuntimeError::new_err("the thread ended without the lock"))?;
    let began = Instant::now();
    let error = lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    let waited = began.elapsed().as_secs_f64();
    worker.join().map_err(|_| PyRuntimeError::new_err("the thread panicked"))?;
    Ok((error, waited))
}

/// How often [`wait_for_gate`] looks, and how long before it gives up.
const GATE_POLL: Duration = Duration::from_micros(200);
const GATE_TIMEOUT: Duration = Duration::from_secs(30);

/// Waits, detached, until at least `waiting` threads wait at the gate, and, if asked, the flight in the air waits for
/// a collection that is not the gate's. Raises TimeoutError after half a minute.
#[pyfunction]
#[pyo3(signature = (waiting=0, *, behind_foreign=false))]
pub(crate) fn wait_for_gate(py: Python<'_>, waiting: usize, behind_foreign: bool) -> PyResult<()> {
    let gate = &runtime::ready().map_err(PyRuntimeError::new_err)?.gate;
    let deadline = Instant::now() + GATE_TIMEOUT;
    interpreter::detached(py, || {
        loop {
            let census = gate.census();
            if census.waiting >= waiting && census.behind_foreign >= usize::from(behind_foreign) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(PyTimeoutError::new_err(format!("the gate has only {census:?}")));
            }
            thread::sleep(GATE_POLL);
        }
    })
}

/// The longest that one request of a device was under pressure, in nanoseconds, and the most collections that one ran
/// by itself, since the last reset of the pressure statistics.
#[pyfunction]
pub(crate) fn request_maxima(index: i32) -> PyResult<(u64, u64)> {
    let statistics = device(index)?.allocator.pressure_statistics();
    Ok((statistics.request_max_ns, statistics.request_max_collections))
}

/// The largest free block of a device, in bytes: what an allocation may take without pressure.
#[pyfunction]
pub(crate) fn largest_free_bytes(index: i32) -> PyResult<u64> {
    Ok(device(index)?.allocator.statistics().map_err(runtime_error)?.largest_free_bytes)
}

/// Checks every invariant of a device's allocator.
#[pyfunction]
pub(crate) fn validate(index: i32) -> PyResult<()> {
    device(index)?.allocator.validate().map_err(runtime_error)
}

/// What is under way: requests registered at a device, and at the gate flights (and those that wait for a foreign
/// collection), jobs, runs of hooks, collector threads on their way, threads that wait; and the hooks that are
/// registered. All but the last are 0 when nothing runs.
#[pyfunction]
pub(crate) fn census(py: Python<'_>, index: i32) -> PyResult<Bound<'_, PyDict>> {
    let registered_requests = device(index)?.allocator.registered_requests().map_err(runtime_error)?;
    let gate = runtime::ready().map_err(PyRuntimeError::new_err)?.gate.census();
    let dict = PyDict::new(py);
    for (name, count) in [
        ("registered_requests", registered_requests),
        ("flights", gate.flights),
        ("behind_foreign", gate.behind_foreign),
        ("queued_jobs", gate.queued_jobs),
        ("attaching_collectors", gate.attaching_collectors),
        ("hook_runs", gate.hook_runs),
        ("waiting", gate.waiting),
        ("hooks", gate.hooks),
    ] {
        dict.set_item(name, count)?;
    }
    Ok(dict)
}

/// Calls `function` while a native thread holds the allocator mutex of a device: what it frees meanwhile goes through
/// the pending list, and what waits for the mutex hangs. Returns what it returns, in a child that it forks too.
#[pyfunction]
pub(crate) fn while_mutex_is_held<'py>(
    py: Python<'py>,
    index: i32,
    function: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let device = device(index)?;
    while_held(py, |wait| device.allocator.while_locked(wait), function)
}

/// As `while_mutex_is_held`, with the locks of the extension that are nobody's own: the gate's, those of what
/// collections freed, of exceptions that were put off, of dropped hooks, and of the history's stream.
#[pyfunction]
pub(crate) fn while_locks_are_held<'py>(
    py: Python<'py>,
    function: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let gate = &runtime::ready().map_err(PyRuntimeError::new_err)?.gate;
    let hold = |wait: &dyn Fn()| {
        stream::while_locked(|| {
            hook::while_locked(|| {
                interrupts::while_locked(|| cycles::while_locked(|| gate.while_locked(wait)));
            });
        });
        Ok(())
    };
    while_held(py, hold, function)
}

/// Calls `function` while a native thread runs `hold`, which waits with some lock held.
fn while_held<'py>(
    py: Python<'py>,
    hold: impl FnOnce(&dyn Fn()) -> Result<(), FlexError> + Send + 'static,
    function: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let (held, is_held) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let holder = thread::Builder::new().spawn(move || {
        hold(&|| {
            let _ = held.send(());
            let _ = released.recv();
        })
    })?;
    interpreter::detached(py, move || is_held.recv())
        .map_err(|_| PyRuntimeError::new_err("the thread ended without the lock"))?;
    let result = function.call0();
    if is_forked() {
        return result; // The holder is the parent's.
    }
    drop(release);
    let ended = interpreter::detached(py, || holder.join());
    ended
        .map_err(|_| PyRuntimeError::new_err("the thread panicked"))?
        .map_err(|_| PyRuntimeError::new_err("the process was forked"))?;
    result
}

/// Makes stacks readable, as recording history does.
#[pyfunction]
pub(crate) fn enable_stacks(py: Python<'_>) -> PyResult<()> {
    interpreter::stacks::enable(py)
}

/// The site of the caller's stack, taken detached as in an operator of torch's, or attached.
#[pyfunction]
pub(crate) fn capture_stack(py: Python<'_>, attached: bool) -> u32 {
    if attached {
        interpreter::stacks::capture()
    } else {
        interpreter::detached(py, interpreter::stacks::capture)
    }
}

/// The frames of a site, innermost first: file, function, line.
#[pyfunction]
pub(crate) fn stack_frames(site: u32) -> Vec<(String, String, u32)> {
    let frames = interpreter::stacks::frames(site);
    frames.into_iter().map(|frame| (frame.filename.to_string(), frame.name.to_string(), frame.line)).collect()
}

/// Nanoseconds for each of `count` captures of the caller's stack, taken detached.
#[pyfunction]
pub(crate) fn time_captures(py: Python<'_>, count: u32) -> f64 {
    interpreter::detached(py, || {
        let began = Instant::now();
        for _ in 0..count {
            std::hint::black_box(interpreter::stacks::capture());
        }
        began.elapsed().as_nanos() as f64 / f64::from(count.max(1))
    })
}
