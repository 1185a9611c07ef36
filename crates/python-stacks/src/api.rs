//! The few functions of CPython that are needed, resolved at run time: most are outside its stable ABI, and the crate
//! links to no interpreter.
//!
//! Those for attached threads only look at live frames and at attributes of code objects: by themselves they run no
//! Python code and give the GIL up nowhere, so they cannot be unwound at exit. On 3.11 a collection, with its
//! finalizers, may begin where they make an object for a frame. But there stacks are read from memory, unless Python
//! was built for debugging, and these functions are called only to compare the two, when stacks are enabled.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};

/// A `PyObject*`.
pub(crate) type Object = *mut c_void;
/// A `PyThreadState*`.
pub(crate) type ThreadState = *mut c_void;

/// The functions.
pub(crate) struct Api {
    own_state: unsafe extern "C" fn() -> ThreadState,
    pub(crate) state_frame: unsafe extern "C" fn(ThreadState) -> Object,
    pub(crate) frame_back: unsafe extern "C" fn(Object) -> Object,
    pub(crate) frame_code: unsafe extern "C" fn(Object) -> Object,
    pub(crate) frame_line: unsafe extern "C" fn(Object) -> c_int,
    pub(crate) attribute: unsafe extern "C" fn(Object, *const c_char) -> Object,
    pub(crate) encode: unsafe extern "C" fn(Object, *const c_char, *const c_char) -> Object,
    pub(crate) bytes: unsafe extern "C" fn(Object) -> *const c_char,
    pub(crate) bytes_size: unsafe extern "C" fn(Object) -> isize,
    pub(crate) release: unsafe extern "C" fn(Object),
    pub(crate) sys_object: unsafe extern "C" fn(*const c_char) -> Object,
    /// `PY_VERSION_HEX` of the interpreter.
    pub(crate) version: c_ulong,
    /// `_PyRuntime`, where there is one.
    pub(crate) runtime: Option<*const u8>,
}

// SAFETY: function pointers and the address of a static of CPython's; nothing is written through it.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

fn lookup(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: `name` is NUL-terminated; looking a symbol up has no other precondition.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// A function of CPython by name and signature.
macro_rules! function {
    ($name:literal, $signature:ty) => {
        match lookup($name) {
            // SAFETY: this is the function's signature in every version from 3.11 on.
            Some(address) => unsafe { std::mem::transmute::<*mut c_void, $signature>(address) },
            None => return Err(format!("this Python has no {:?}", $name)),
        }
    };
}

impl Api {
    /// Looks everything up.
    ///
    /// # Errors
    /// The first function that is missing.
    pub(crate) fn resolve() -> Result<Self, String> {
        // From 3.11 on there is one.
        let version = lookup(c"Py_Version").ok_or("this Python has no \"Py_Version\"")?;
        Ok(Api {
            own_state: function!(c"PyGILState_GetThisThreadState", unsafe extern "C" fn() -> ThreadState),
            state_frame: function!(c"PyThreadState_GetFrame", unsafe extern "C" fn(ThreadState) -> Object),
            frame_back: function!(c"PyFrame_GetBack", unsafe extern "C" fn(Object) -> Object),
            frame_code: function!(c"PyFrame_GetCode", unsafe extern "C" fn(Object) -> Object),
            frame_line: function!(c"PyFrame_GetLineNumber", unsafe extern "C" fn(Object) -> c_int),
            attribute: function!(
                c"PyObject_GetAttrString",
                unsafe extern "C" fn(Object, *const c_char) -> Object
            ),
            encode: function!(
                c"PyUnicode_AsEncodedString",
                unsafe extern "C" fn(Object, *const c_char, *const c_char) -> Object
            ),
            bytes: function!(c"PyBytes_AsString", unsafe extern "C" fn(Object) -> *const c_char),
            bytes_size: function!(c"PyBytes_Size", unsafe extern "C" fn(Object) -> isize),
            release: function!(c"Py_DecRef", unsafe extern "C" fn(Object)),
            sys_object: function!(c"PySys_GetObject", unsafe extern "C" fn(*const c_char) -> Object),
            // SAFETY: a constant of the interpreter, of this type.
            version: unsafe { *version.cast::<c_ulong>() },
            runtime: lookup(c"_PyRuntime").map(|address| address.cast_const().cast()),
        })
    }

    /// The calling thread's own thread state, attached or not, or null.
    pub(crate) fn own_state(&self) -> ThreadState {
        // SAFETY: reads thread-local state; needs no attachment.
        unsafe { (self.own_state)() }
    }
}
