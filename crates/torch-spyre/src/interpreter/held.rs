//! What the interpreter says about memory that is still held when a request fails: by frozen garbage and by live
//! tracebacks. Bounded in time, and nothing is freed. No lock.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use flex::fork::is_forked;
use flex::pressure::Hints;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::cycles::dead;
use super::ffi::{self, Ended};
use super::interrupts;
use crate::message;
use crate::runtime;

/// How long each of the two searches may take, at most.
const TIMEOUT: Duration = Duration::from_millis(900);

/// How long an error waits for frozen garbage that has no frozen tensor.
const UNLIKELY_TIMEOUT: Duration = Duration::from_millis(300);

static FREEZE_COUNT: OnceLock<Py<PyAny>> = OnceLock::new();

/// `torch_spyre._held.hint`.
static TRACEBACK_FINDER: OnceLock<Py<PyAny>> = OnceLock::new();

/// Keeps what is needed of the module `gc`. Once, at import.
pub(super) fn install(py: Python<'_>) -> PyResult<()> {
    let _ = FREEZE_COUNT.set(py.import("gc")?.getattr("get_freeze_count")?.unbind());
    Ok(())
}

/// Tells who looks through tracebacks: `hint(device, timeout_s)`. Only the first call counts.
pub(crate) fn set_traceback_finder(finder: Py<PyAny>) {
    let _ = TRACEBACK_FINDER.set(finder);
}

/// How many objects are frozen. The calling thread is attached and has no pending exception.
fn freeze_count(py: Python<'_>) -> usize {
    let Some(count) = FREEZE_COUNT.get() else { return 0 };
    // SAFETY: attached; both objects are alive.
    match unsafe { ffi::call_for_integer(count.as_ptr(), PyTuple::empty(py).as_ptr()) } {
        Ended::Returned(count) => count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0),
        _ => 0,
    }
}

/// Bytes of a device that only frozen garbage holds; `None` if that cannot be told. The calling thread is attached and
/// has no pending exception.
pub(crate) fn frozen_bytes(py: Python<'_>, device: u32, timeout: Duration) -> Option<u64> {
    look_for_frozen(py, device, timeout, None)
}

/// As [`frozen_bytes`], with `unlikely_timeout` as in [`dead::find_frozen`].
fn look_for_frozen(
    py: Python<'_>,
    device: u32,
    timeout: Duration,
    unlikely_timeout: Option<Duration>,
) -> Option<u64> {
    let device = runtime::device(i32::try_from(device).ok()?).ok()?;
    let count = freeze_count(py);
    if count == 0 {
        return Some(0);
    }
    dead::find_frozen(py, device, count, timeout, unlikely_timeout).map(|found| found.bytes)
}

/// Why memory may still be held, as far as that can be told before the deadline. The calling thread is attached and has
/// no pending exception.
pub(super) fn hints(py: Python<'_>, device: u32, deadline: Instant) -> Hints {
    let mut hints = Hints::default();
    let left = || TIMEOUT.min(deadline.saturating_duration_since(Instant::now()));
    match look_for_frozen(py, device, left(), Some(UNLIKELY_TIMEOUT)) {
        Some(0) => {}
        Some(bytes) => {
            let held = message::human(bytes);
            let text = format!(
                "{held} is held only by garbage that gc.freeze() keeps from being collected; see gc.unfreeze()."
            );
            hints.frozen = Some(text.into());
        }
        None => hints.frozen_objects = !is_forked(),
    }
    if !is_forked() {
        tracebacks(py, device, left(), &mut hints);
    }
    hints
}

fn tracebacks(py: Python<'_>, device: u32, timeout: Duration, hints: &mut Hints) {
    if timeout.is_zero() {
        return hints.live_traceback = true; // It is not known.
    }
    let Some(finder) = TRACEBACK_FINDER.get() else { return };
    let arguments = ffi::uncollected(|| (device, timeout.as_secs_f64()).into_pyobject(py));
    let Ok(arguments) = arguments else { return };
    // SAFETY: attached; both objects are alive, and the result is a new reference.
    let found = unsafe {
        match ffi::call_own(finder.as_ptr(), arguments.as_ptr()) {
            Ended::Returned(found) => Bound::from_owned_ptr(py, found),
            Ended::Interrupted => return interrupts::note(),
            Ended::Raised | Ended::Forked => return,
        }
    };
    if let Ok((text, complete)) = found.extract::<(Option<String>, bool)>() {
        hints.live_traceback = !complete;
        hints.traceback = text.map(Into::into);
    }
}
