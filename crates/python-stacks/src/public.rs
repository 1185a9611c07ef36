//! The calling thread's frames through CPython's own functions: what the reading from memory is compared with, and what
//! takes its place where the interpreter's layout is not known. For attached threads only, and much slower.

use std::ffi::CStr;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::Frame;
use crate::api::{Api, Object};
use crate::sites::Keyed;

/// The calling thread's stack, innermost first.
///
/// # Safety
/// The calling thread is attached.
pub(crate) unsafe fn frames(api: &Api, most: usize) -> Vec<Frame> {
    let mut found = Vec::new();
    // SAFETY: attached; each frame is a new reference, released once. The frames are running, so none dies here.
    unsafe {
        let mut frame = (api.state_frame)(api.own_state());
        while !frame.is_null() && found.len() < most {
            let code = (api.frame_code)(frame);
            found.push(Frame {
                filename: attribute(api, code, c"co_filename").into(),
                name: attribute(api, code, c"co_name").into(),
                line: u32::try_from((api.frame_line)(frame)).unwrap_or(0),
            });
            (api.release)(code);
            let back = (api.frame_back)(frame);
            (api.release)(frame);
            frame = back;
        }
        if !frame.is_null() {
            (api.release)(frame);
        }
    }
    found
}

/// A string attribute, what UTF-8 cannot say escaped.
///
/// # Safety
/// The calling thread is attached; `object` is live.
unsafe fn attribute(api: &Api, object: Object, name: &CStr) -> String {
    // SAFETY: the caller's contract. Code objects have the attribute, and every string can be encoded, so there is no
    // error to be seen but lack of memory, which leaves null.
    unsafe {
        let text = (api.attribute)(object, name.as_ptr());
        if text.is_null() {
            return String::from("?");
        }
        let encoded = (api.encode)(text, c"utf-8".as_ptr(), c"backslashreplace".as_ptr());
        (api.release)(text);
        if encoded.is_null() {
            return String::from("?");
        }
        let size = usize::try_from((api.bytes_size)(encoded)).unwrap_or(0);
        let bytes = std::slice::from_raw_parts((api.bytes)(encoded).cast::<u8>(), size);
        let copy = String::from_utf8_lossy(bytes).into_owned();
        (api.release)(encoded);
        copy
    }
}

/// The hash of a stack, never 0.
pub(crate) fn hash(frames: &[Frame]) -> u64 {
    let mut hasher = DefaultHasher::new();
    frames.hash(&mut hasher);
    hasher.finish() | 1
}

impl Keyed for Frame {
    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}
