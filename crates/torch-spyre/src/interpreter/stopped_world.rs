//! Looking at objects while no other thread changes them, without a GIL.
//!
//! CPython 3.13t does not export the function that stops the world. `gc.get_referrers` stops it, though, and then has
//! every object that the collector knows report its references, by its type's `tp_traverse`. So there is an object of
//! ours among them, and the work is done when it is asked. It is what a `tp_traverse` may do: read objects, and ask
//! others for their references. It makes and drops no Python object, does not detach, and waits for nothing.
//!
//! Later versions are left out: there a reference from a running frame may not be counted. No lock.

use std::cell::Cell;
use std::sync::OnceLock;

use pyo3::PyTraverseError;
use pyo3::gc::PyVisit;
use pyo3::prelude::*;

use super::ffi::{self, Ended};

const VERSION_3_13: std::ffi::c_ulong = 0x030d;

static GET_REFERRERS: OnceLock<Py<PyAny>> = OnceLock::new();

/// The object that is asked. Made each time: one that `gc.freeze()` has put aside is not.
#[pyclass(module = "torch_spyre._C", frozen)]
struct Bystander {}

thread_local! {
    /// What is to be done when this thread is the one that stopped the world.
    static WORK: Cell<Option<*mut dyn FnMut()>> = const { Cell::new(None) };
}

#[pymethods]
impl Bystander {
    fn __traverse__(&self, _visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(work) = WORK.take() {
            // SAFETY: `run` has put it there, on this thread, and waits.
            unsafe { (*work)() };
        }
        Ok(())
    }
}

/// Keeps what is needed of the module `gc`. Once, at import, without a GIL.
pub(super) fn install(py: Python<'_>) -> PyResult<()> {
    let _ = GET_REFERRERS.set(py.import("gc")?.getattr("get_referrers")?.unbind());
    Ok(())
}

/// Does some work while all other threads stand still, and returns its result; `None` where that is not possible. The
/// calling thread is attached and has no pending exception.
pub(super) fn run<R>(py: Python<'_>, work: impl FnOnce() -> R) -> Option<R> {
    // SAFETY: a constant of the interpreter.
    let is_known = unsafe { pyo3::ffi::Py_Version } >> 16 == VERSION_3_13;
    let get_referrers = GET_REFERRERS.get().filter(|_| is_known)?;
    let arguments = (Bystander {},).into_pyobject(py).ok()?;
    let (mut work, mut result) = (Some(work), None);
    let mut once = || result = work.take().map(|work| work());
    let pointer: *mut (dyn FnMut() + '_) = &raw mut once;
    // SAFETY: only the lifetime differs; it is taken away again before `once` ends.
    WORK.set(Some(unsafe {
        std::mem::transmute::<*mut (dyn FnMut() + '_), *mut (dyn FnMut() + 'static)>(pointer)
    }));
    // SAFETY: attached; the objects are alive, and the result is a new reference.
    let ended = unsafe { ffi::call(get_referrers.as_ptr(), arguments.as_ptr()) };
    WORK.set(None);
    if ended == Ended::Returned(()) { result } else { None }
}
