//! The objects that `gc.freeze()` has put aside. CPython has no function that lists them: they are read from the
//! collector's own list, by a table of where each version keeps it, and counted against `gc.get_freeze_count()`.
//!
//! Only with a GIL: without one there is no such list. No lock.

use std::ffi::c_void;

use pyo3::prelude::*;

use super::ffi::{self, Object};

/// What comes before an object that the collector looks at: two words, the first of them links to the next, with flags
/// in its lowest bits.
const HEAD_BYTES: usize = 16;
const FLAGS: usize = 3;

/// Where the head of the list lies in `PyInterpreterState`, in bytes.
fn list_offset() -> Option<usize> {
    if cfg!(not(target_pointer_width = "64")) {
        return None;
    }
    // SAFETY: a constant of the interpreter.
    match unsafe { pyo3::ffi::Py_Version } >> 16 {
        0x030b => Some(648 + 104),
        0x030c => Some(112 + 104),
        0x030d => Some(7400 + 104),
        _ => None,
    }
}

/// The frozen objects, borrowed; `None` if they cannot be listed, or are not as many as `expected`. They stay as they
/// are until the caller runs Python code. The calling thread is attached, on a build with a GIL.
pub(super) fn objects(_py: Python<'_>, expected: usize) -> Option<Vec<Object>> {
    let list = ffi::current_interpreter().cast::<u8>().wrapping_add(list_offset()?).cast::<c_void>();
    let mut found = Vec::with_capacity(expected);
    let mut head = next(list);
    while head != list {
        if head.is_null() || found.len() == expected {
            return None;
        }
        found.push(head.cast::<u8>().wrapping_add(HEAD_BYTES).cast());
        head = next(head);
    }
    (found.len() == expected).then_some(found)
}

fn next(head: *mut c_void) -> *mut c_void {
    // SAFETY: the head of the interpreter's list, or one that it links to, which belongs to a live object. The GIL is
    // held, so nobody changes the list.
    let link = unsafe { head.cast::<usize>().read() };
    (link & !FLAGS) as *mut c_void
}
