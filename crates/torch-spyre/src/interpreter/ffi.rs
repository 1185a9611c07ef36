//! The CPython calls of the allocation and free paths.
//!
//! PyO3's own bookkeeping of attachment is wrong there: torch detaches and attaches with its own code, behind
//! PyO3's back. So the real thread state is asked, and attaching is done with the C API.
//!
//! Everything that may run Python or wait for the interpreter is `extern "C-unwind"` and called under
//! [`parked`]: before 3.14 CPython ends threads that wait for the interpreter at exit by unwinding them, which
//! would abort in Rust frames. A parked thread instead stays where it is, holding nothing.

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::ptr;
use std::sync::OnceLock;

use flex::rank;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;

use super::interrupts;

/// A `PyObject*`.
pub(super) type Object = *mut pyo3::ffi::PyObject;
/// A `PyThreadState*`.
pub(super) type ThreadState = *mut c_void;
/// A `PyInterpreterState*`.
pub(super) type Interpreter = *mut c_void;

unsafe extern "C-unwind" {
    fn PyEval_SaveThread() -> ThreadState;
    fn PyEval_RestoreThread(state: ThreadState);
    fn PyGILState_GetThisThreadState() -> ThreadState;
    fn PyThreadState_New(interpreter: Interpreter) -> ThreadState;
    fn PyThreadState_GetInterpreter(state: ThreadState) -> Interpreter;
    fn PyInterpreterState_Get() -> Interpreter;
    fn PyInterpreterState_GetID(interpreter: Interpreter) -> i64;
    fn PyObject_CallObject(callable: Object, arguments: Object) -> Object;
    fn PyObject_GetAttrString(object: Object, name: *const c_char) -> Object;
    fn PyException_SetTraceback(error: Object, traceback: Object) -> c_int;
    fn PyErr_Fetch(kind: *mut Object, value: *mut Object, traceback: *mut Object);
    fn PyErr_Restore(kind: Object, value: Object, traceback: Object);
    fn PyErr_NormalizeException(kind: *mut Object, value: *mut Object, traceback: *mut Object);
    fn PyErr_WriteUnraisable(context: Object);
    fn PyErr_Clear();
    fn PyErr_ExceptionMatches(kind: Object) -> c_int;
    fn PyErr_Occurred() -> Object;
    fn PyThreadState_SetAsyncExc(thread: c_ulong, kind: Object) -> c_int;
    fn PyLong_AsLong(number: Object) -> c_long;
    fn PyGC_IsEnabled() -> c_int;
    fn PyGC_Disable() -> c_int;
    fn PyGC_Enable() -> c_int;
    fn PyList_New(length: isize) -> Object;
    fn PyList_Size(list: Object) -> isize;
    fn PyList_GetItem(list: Object, index: isize) -> Object;
    fn PyList_Append(list: Object, item: Object) -> c_int;
    fn PyList_Insert(list: Object, index: isize, item: Object) -> c_int;
    fn PyList_GetSlice(list: Object, low: isize, high: isize) -> Object;
    fn PyList_SetSlice(list: Object, low: isize, high: isize, items: Object) -> c_int;
    fn PyType_GetSlot(kind: Object, slot: c_int) -> *mut c_void;
    fn PyType_IsSubtype(kind: Object, base: Object) -> c_int;
    fn Py_DecRef(object: Object);
}

/// Functions that are outside the stable ABI or have changed their names, resolved once at import.
struct Symbols {
    current: unsafe extern "C-unwind" fn() -> ThreadState,
    is_finalizing: unsafe extern "C-unwind" fn() -> c_int,
    interpreter: Interpreter,
    /// Before 3.12 the collector begins wherever objects are made.
    collects_anywhere: bool,
    /// A function from 3.14 on, when the layout of objects that a stable build knows has changed.
    reference_count: Option<unsafe extern "C-unwind" fn(Object) -> isize>,
}

// SAFETY: function pointers, and a pointer that is only compared and passed back to CPython, which keeps the
// interpreter alive until the process ends.
unsafe impl Send for Symbols {}
// SAFETY: as above; nothing is written after initialisation.
unsafe impl Sync for Symbols {}

static SYMBOLS: OnceLock<Symbols> = OnceLock::new();

/// 3.12.0 as `Py_Version` says it.
const VERSION_3_12: c_ulong = 0x030c_0000;

fn lookup(names: &[&CStr]) -> Option<*mut c_void> {
    names.iter().find_map(|name| {
        // SAFETY: `name` is NUL-terminated; looking a symbol up has no other precondition.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr().cast::<c_char>()) };
        (!address.is_null()).then_some(address)
    })
}

/// Resolves what is not linked. Called once, attached, before anything else in this file but `parked`.
///
/// # Errors
/// The names that this interpreter does not have.
pub(super) fn resolve() -> Result<(), String> {
    if SYMBOLS.get().is_some() {
        return Ok(());
    }
    let need = |names: &[&CStr]| lookup(names).ok_or_else(|| format!("this Python has none of {names:?}"));
    let current = need(&[c"PyThreadState_GetUnchecked", c"_PyThreadState_UncheckedGet"])?;
    let is_finalizing = need(&[c"Py_IsFinalizing", c"_Py_IsFinalizing"])?;
    // SAFETY: the signatures are CPython's, under both names; the caller is attached.
    let symbols = unsafe {
        Symbols {
            current: std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn() -> ThreadState>(
                current,
            ),
            is_finalizing: std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn() -> c_int>(
                is_finalizing,
            ),
            interpreter: PyInterpreterState_Get(),
            collects_anywhere: pyo3::ffi::Py_Version < VERSION_3_12,
            reference_count: lookup(&[c"Py_REFCNT"]).map(|function| {
                std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(Object) -> isize>(function)
            }),
        }
    };
    let _ = SYMBOLS.set(symbols);
    Ok(())
}

fn symbols() -> &'static Symbols {
    SYMBOLS.get().expect("the interpreter is resolved at import")
}

/// Parks the thread for ever if it is unwound by CPython at exit.
struct Park;

impl Drop for Park {
    fn drop(&mut self) {
        // An ordinary panic goes on; a forced unwind must not enter Rust frames above.
        if !std::thread::panicking() {
            park_for_ever();
        }
    }
}

/// Keeps the calling thread for the rest of the process's life.
pub(super) fn park_for_ever() -> ! {
    loop {
        // SAFETY: waits for a signal; no precondition.
        unsafe { libc::pause() };
    }
}

/// Runs what may run Python or wait for the interpreter. No allocator mutex is held.
pub(super) fn parked<R>(call: impl FnOnce() -> R) -> R {
    rank::assert_unlocked("enter the interpreter");
    let park = Park;
    let result = call();
    std::mem::forget(park);
    result
}

/// The calling thread's attached thread state, or null.
///
/// On 3.11 the unchecked getter is process-wide and shows a native thread the state of whoever holds the GIL, so it
/// must also be this thread's own.
pub(super) fn attached_state() -> ThreadState {
    // SAFETY: neither call needs attachment; they read thread-local or atomic state.
    let (current, own) = unsafe { ((symbols().current)(), PyGILState_GetThisThreadState()) };
    if current == own { current } else { ptr::null_mut() }
}

/// The calling thread's own thread state, attached or not, or null.
pub(super) fn own_state() -> ThreadState {
    // SAFETY: reads thread-local state.
    unsafe { PyGILState_GetThisThreadState() }
}

/// Whether a thread state belongs to the interpreter that loaded this module.
pub(super) fn is_ours(state: ThreadState) -> bool {
    // SAFETY: `state` is the calling thread's own, which lives as long as the thread uses it.
    unsafe { PyThreadState_GetInterpreter(state) == symbols().interpreter }
}

/// Whether the calling thread, which is attached, is so to the main interpreter.
pub(super) fn is_main_interpreter() -> bool {
    // SAFETY: attached. The main interpreter is the one with the number 0.
    unsafe { PyInterpreterState_GetID(PyInterpreterState_Get()) == 0 }
}

/// The interpreter that loaded this module.
pub(super) fn current_interpreter() -> Interpreter {
    symbols().interpreter
}

/// Whether the interpreter is shutting down.
pub(super) fn is_finalizing() -> bool {
    // SAFETY: reads an atomic of the runtime.
    unsafe { (symbols().is_finalizing)() != 0 }
}

/// A thread state for the calling thread, not attached.
pub(super) fn new_state() -> ThreadState {
    // SAFETY: the interpreter is alive: the gate is closed before it is finalized, and then starts no thread.
    unsafe { PyThreadState_New(symbols().interpreter) }
}

/// Attaches the calling thread. May wait for the interpreter, or for ever at its exit.
pub(super) fn attach(state: ThreadState) {
    // SAFETY: `state` is the calling thread's own and not attached, as the callers of this module ensure.
    parked(|| unsafe { PyEval_RestoreThread(state) });
}

/// Detaches the calling thread, which is attached.
pub(super) fn detach() -> ThreadState {
    rank::assert_unlocked("detach from the interpreter");
    // SAFETY: the calling thread is attached.
    unsafe { PyEval_SaveThread() }
}

/// Calls a function of `sys` that lists all threads, such as `sys._current_frames`: it takes the lock of CPython's
/// list of threads, which a native thread may extend at any time, without the GIL. A collection that begins inside such
/// a function may deadlock or crash. Returns a new reference, or null.
///
/// # Safety
/// The calling thread is attached and has no pending exception; `function` is a live object.
pub(super) unsafe fn list_threads(function: Object) -> Object {
    uncollected(|| {
        // SAFETY: the caller's contract.
        parked(|| unsafe {
            let list = PyObject_CallObject(function, ptr::null_mut());
            if list.is_null() {
                PyErr_Clear();
            }
            list
        })
    })
}

/// Runs what makes Python objects, but no Python code, with no collection in its middle: before 3.12 one begins
/// wherever objects are made, and runs finalizers there. At exit those may be unwound, and PyO3's functions must not.
/// The calling thread is attached, and stays so: with a GIL nobody sees the collector off.
pub(crate) fn uncollected<R>(body: impl FnOnce() -> R) -> R {
    struct Enable(bool);
    impl Drop for Enable {
        fn drop(&mut self) {
            if self.0 {
                // SAFETY: attached, as it was before.
                unsafe { PyGC_Enable() };
            }
        }
    }
    // SAFETY: attached.
    let _enable = Enable(symbols().collects_anywhere && unsafe { PyGC_Disable() } != 0);
    body()
}

/// A reference of ours. To give it up may run Python code, as PyO3's own must not.
pub(super) struct Owned(Object);

impl Owned {
    /// A new list of these objects; `None` if there is no memory for it. The calling thread is attached.
    ///
    /// # Safety
    /// The objects are alive.
    pub(super) unsafe fn list(objects: &[Object]) -> Option<Owned> {
        // SAFETY: the caller's contract; what is appended is kept alive by the list.
        uncollected(|| unsafe {
            let list = Owned::new(PyList_New(0))?;
            for object in objects {
                if PyList_Append(list.0, *object) != 0 {
                    PyErr_Clear();
                    return None;
                }
            }
            Some(list)
        })
    }

    /// A new reference, or null with an exception pending.
    ///
    /// # Safety
    /// It is the caller's, who is attached.
    pub(super) unsafe fn new(object: Object) -> Option<Owned> {
        if object.is_null() {
            // SAFETY: attached.
            unsafe { PyErr_Clear() };
            return None;
        }
        Some(Owned(object))
    }

    pub(super) fn as_ptr(&self) -> Object {
        self.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the reference is ours; whoever made it is attached as long as it has it.
        unsafe { release(self.0) };
    }
}

/// Gives up a reference. The calling thread is attached.
///
/// # Safety
/// `object` is a live object and the reference the caller's.
pub(super) unsafe fn release(object: Object) {
    // SAFETY: the caller's contract.
    parked(|| unsafe { Py_DecRef(object) });
}

/// Has a frame that has ended drop what it refers to. The calling thread is attached and has no pending exception.
///
/// # Safety
/// `frame` is a live frame.
pub(super) unsafe fn clear_frame(frame: Object) {
    // SAFETY: the caller's contract. One that has not ended raises, and keeps what it has.
    parked(|| unsafe {
        let Some(clear) = Owned::new(PyObject_GetAttrString(frame, c"clear".as_ptr())) else { return };
        drop(Owned::new(PyObject_CallObject(clear.as_ptr(), ptr::null_mut())));
    });
}

/// Replaces the traceback of an exception; `None` is none. The calling thread is attached.
///
/// # Safety
/// `error` is a live exception and `traceback` a live traceback or None.
pub(super) unsafe fn set_traceback(error: Object, traceback: Object) {
    // SAFETY: the caller's contract.
    parked(|| unsafe { PyException_SetTraceback(error, traceback) });
}

/// Has a thread raise an exception of a class as soon as it runs Python code again. The calling thread is attached.
///
/// # Safety
/// `class` is a live class of exceptions.
pub(super) unsafe fn send_exception(thread: u64, class: Object) {
    // SAFETY: the caller's contract. A thread that has ended is none, and one that was sent before is replaced.
    parked(|| unsafe { PyThreadState_SetAsyncExc(thread as c_ulong, class) });
}

/// A pending exception, taken away while other Python code runs and put back afterwards.
pub(super) struct PendingException([Object; 3]);

impl PendingException {
    /// Takes the pending exception, if any. The calling thread is attached.
    pub(super) fn take() -> Self {
        let mut parts = [ptr::null_mut(); 3];
        let [kind, value, traceback] = &mut parts;
        // SAFETY: attached; the three places are valid for writes.
        unsafe { PyErr_Fetch(kind, value, traceback) };
        PendingException(parts)
    }

    /// The exception, which knows its traceback then; `None` if none was pending.
    pub(super) fn value<'py>(&mut self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let [kind, value, traceback] = &mut self.0;
        // SAFETY: attached; the three are what was taken, and stay that.
        unsafe {
            PyErr_NormalizeException(kind, value, traceback);
            if !value.is_null() && !traceback.is_null() {
                pyo3::ffi::PyException_SetTraceback(*value, *traceback);
            }
            Bound::from_borrowed_ptr_or_opt(py, *value)
        }
    }

    /// Gives it up. The calling thread is attached.
    pub(super) fn release(self) {
        for part in self.0.into_iter().filter(|part| !part.is_null()) {
            // SAFETY: attached, and the reference is the one taken.
            unsafe { release(part) };
        }
    }

    /// Puts it back. The calling thread is attached.
    pub(super) fn restore(self) {
        let [kind, value, traceback] = self.0;
        // SAFETY: attached; the references are the ones taken.
        unsafe { PyErr_Restore(kind, value, traceback) };
    }
}

/// How a call of Python code ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended<T> {
    Returned(T),
    /// It raised, which has been reported as unraisable.
    Raised,
    /// It raised KeyboardInterrupt, or a function of ours met an exception of the program's, which has been kept: the
    /// Python code that still runs would swallow it. See [`interrupts`].
    Interrupted,
    /// This process is a child that it forked.
    Forked,
}

/// Calls a Python callable and returns its result as an integer, `None` if it is none. The calling thread is attached
/// and has no pending exception.
///
/// # Safety
/// `callable` and `arguments` (a tuple) are live objects.
pub(super) unsafe fn call_for_integer(callable: Object, arguments: Object) -> Ended<Option<i64>> {
    // SAFETY: the caller's contract; a result is a new reference, released once. Dropping it may run Python code.
    unsafe {
        call_with(callable, arguments, |result| {
            let number = PyLong_AsLong(result);
            Py_DecRef(result);
            if PyErr_Occurred().is_null() {
                return Some(number);
            }
            PyErr_Clear();
            None
        })
    }
}

/// Calls a Python callable and drops its result. The calling thread is attached and has no pending exception.
///
/// # Safety
/// `callable` and `arguments` (a tuple) are live objects.
pub(super) unsafe fn call(callable: Object, arguments: Object) -> Ended<()> {
    // SAFETY: the caller's contract; the result is a new reference, released once.
    unsafe { call_with(callable, arguments, |result| Py_DecRef(result)) }
}

/// # Safety
/// As [`call`]; `take` takes the reference to the result.
unsafe fn call_with<T>(callable: Object, arguments: Object, take: impl FnOnce(Object) -> T) -> Ended<T> {
    // SAFETY: attached, and the objects are live.
    let result = parked(|| unsafe { PyObject_CallObject(callable, arguments) });
    if flex::fork::is_forked() {
        return Ended::Forked;
    }
    if !result.is_null() {
        return Ended::Returned(parked(|| take(result)));
    }
    // SAFETY: attached, with the exception of the call pending; `callable` is live.
    parked(|| unsafe {
        if PyErr_ExceptionMatches(pyo3::ffi::PyExc_KeyboardInterrupt) != 0 {
            PyErr_Clear();
            interrupts::keep_interrupt();
            return Ended::Interrupted;
        }
        PyErr_WriteUnraisable(callable);
        Ended::Raised
    })
}

/// Calls a Python function of ours, which calls no Python code but its own, and returns its result, a new reference.
/// What a signal handler raises meanwhile is kept for the program. The calling thread is attached and has no pending
/// exception.
///
/// # Safety
/// `function` and `arguments` (a tuple) are live objects.
pub(super) unsafe fn call_own(function: Object, arguments: Object) -> Ended<Object> {
    // SAFETY: the caller's contract.
    let result = parked(|| unsafe { PyObject_CallObject(function, arguments) });
    if flex::fork::is_forked() {
        return Ended::Forked;
    }
    if !result.is_null() {
        return Ended::Returned(result);
    }
    // SAFETY: attached; `function` is live.
    if interrupts::keep_pending(&unsafe { Bound::from_borrowed_ptr(Python::assume_attached(), function) }) {
        return Ended::Interrupted;
    }
    // SAFETY: attached, with the exception of the call pending.
    parked(|| unsafe { PyErr_WriteUnraisable(function) });
    Ended::Raised
}

/// Calls a Python callable and returns its result, a new reference. The calling thread is attached and has no pending
/// exception.
///
/// # Safety
/// `callable` and `arguments` (a tuple) are live objects.
pub(super) unsafe fn call_for_object(callable: Object, arguments: Object) -> Ended<Object> {
    // SAFETY: the caller's contract.
    unsafe { call_with(callable, arguments, |result| result) }
}

/// Takes the items of a list from `start` on out of it, into a new list. Null if there is no memory for that. The
/// calling thread is attached.
///
/// # Safety
/// `list` is a live list.
pub(super) unsafe fn split_list(list: Object, start: isize) -> Object {
    // SAFETY: the caller's contract. The items live on in the new list, so no Python code runs.
    parked(|| unsafe {
        let end = PyList_Size(list);
        let tail = PyList_GetSlice(list, start, end);
        if tail.is_null() || PyList_SetSlice(list, start, end, ptr::null_mut()) != 0 {
            PyErr_Clear();
        }
        tail
    })
}

/// How many items a list has. The calling thread is attached.
///
/// # Safety
/// `list` is a live list.
pub(super) unsafe fn list_length(list: Object) -> isize {
    // SAFETY: the caller's contract.
    unsafe { PyList_Size(list) }
}

/// Adds items of one list to another. The calling thread is attached.
///
/// # Safety
/// Both are live lists.
pub(super) unsafe fn extend_list(list: Object, items: Object) {
    // SAFETY: the caller's contract.
    parked(|| unsafe {
        let end = PyList_Size(list);
        if PyList_SetSlice(list, end, end, items) != 0 {
            PyErr_Clear();
        }
    });
}

/// The items of a list, borrowed from it. The calling thread is attached.
///
/// # Safety
/// `list` is a live list.
pub(super) unsafe fn list_items(list: Object) -> Vec<Object> {
    // SAFETY: the caller's contract.
    unsafe { (0..PyList_Size(list)).map(|index| PyList_GetItem(list, index)).collect() }
}

/// Reports the references of an object to `visit`, as for the collector. The calling thread is attached.
///
/// # Safety
/// `object` is alive, and `visit` may be called with `argument`.
pub(super) unsafe fn traverse(object: Object, visit: pyo3::ffi::visitproc, argument: *mut c_void) {
    // SAFETY: the caller's contract. What a type has in that slot is a function of that signature, which runs no Python
    // code.
    unsafe {
        let slot = PyType_GetSlot(pyo3::ffi::Py_TYPE(object).cast(), pyo3::ffi::Py_tp_traverse);
        if let Some(traverse) = std::mem::transmute::<*mut c_void, Option<pyo3::ffi::traverseproc>>(slot) {
            traverse(object, visit, argument);
        }
    }
}

/// Has an object of a dead cycle drop its references, as the collector does. May run Python code. The calling thread is
/// attached and has no pending exception.
///
/// # Safety
/// `object` is alive, and nobody else can reach it.
pub(super) unsafe fn clear(object: Object) {
    type Clear = unsafe extern "C-unwind" fn(Object) -> c_int;
    // SAFETY: the caller's contract. What a type has in that slot is a function of that signature.
    parked(|| unsafe {
        let slot = PyType_GetSlot(pyo3::ffi::Py_TYPE(object).cast(), pyo3::ffi::Py_tp_clear);
        if let Some(clear) = std::mem::transmute::<*mut c_void, Option<Clear>>(slot) {
            clear(object);
            if !PyErr_Occurred().is_null() {
                PyErr_WriteUnraisable(object);
            }
        }
    });
}

/// How many references an object has. The calling thread is attached.
///
/// # Safety
/// `object` is alive.
pub(super) unsafe fn reference_count(object: Object) -> isize {
    // SAFETY: the caller's contract.
    unsafe {
        match symbols().reference_count {
            Some(reference_count) => reference_count(object),
            None => pyo3::ffi::Py_REFCNT(object),
        }
    }
}

/// Whether an object is an instance of a class or of one that is derived from it; runs no Python code. The calling
/// thread is attached.
///
/// # Safety
/// Both are alive, and `class` is a type.
pub(super) unsafe fn is_instance(object: Object, class: Object) -> bool {
    // SAFETY: the caller's contract.
    unsafe { PyType_IsSubtype(pyo3::ffi::Py_TYPE(object).cast(), class) != 0 }
}

/// Whether the automatic collector is enabled. The calling thread is attached.
pub(super) fn collector_enabled() -> bool {
    // SAFETY: attached.
    unsafe { PyGC_IsEnabled() != 0 }
}

/// Adds `item` to the list unless it is there, at its start or its end; whether it was missing. The calling thread is
/// attached.
///
/// # Safety
/// `list` is a live list and `item` a live object.
pub(super) unsafe fn ensure_in_list(list: Object, item: Object, at_start: bool) -> bool {
    // SAFETY: the caller's contract.
    let shared = unsafe { Bound::from_borrowed_ptr(Python::assume_attached(), list) };
    // Without a GIL other threads may change the list while it is read. Entering may wait, detached.
    let present = parked(|| {
        with_critical_section(&shared, || {
            // SAFETY: attached; items are compared by identity only, borrowed for that long.
            (0..unsafe { PyList_Size(list) }).any(|index| unsafe { PyList_GetItem(list, index) } == item)
        })
    });
    if present {
        return false;
    }
    // SAFETY: attached. These lock the list themselves.
    parked(|| unsafe {
        let failed = if at_start { PyList_Insert(list, 0, item) } else { PyList_Append(list, item) } != 0;
        if failed {
            // Out of memory: without the entry the next collection is taken for one that did not run, which is safe.
            PyErr_Clear();
        }
    });
    true
}
