//! The caller's variables: the only memory that is followed by pointer.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::slice;

use crate::status::Failure;

/// A place for a result, known to be neither null nor misaligned.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// # Errors
    /// An invalid argument with the text `refusal`, if the pointer is null or misaligned.
    ///
    /// # Safety
    /// Any other pointer is valid for writes until the value is written.
    pub(crate) unsafe fn new(pointer: *mut T, refusal: &'static CStr) -> Result<Self, Failure> {
        match NonNull::new(pointer) {
            Some(place) if place.is_aligned() => Ok(Out(place)),
            _ => Err(Failure::invalid_argument(refusal)),
        }
    }

    /// As [`new`](Self::new), where null means that the caller does not want the result.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    pub(crate) unsafe fn optional(pointer: *mut T, refusal: &'static CStr) -> Result<Option<Self>, Failure> {
        // SAFETY: the caller's contract.
        (!pointer.is_null()).then(|| unsafe { Out::new(pointer, refusal) }).transpose()
    }

    /// Writes the result.
    pub(crate) fn write(self, value: T) {
        // SAFETY: checked for null and alignment when made, valid for writes by the contract of that.
        unsafe { self.0.write(value) };
    }
}

/// The elements of an array of the caller's; a null pointer is an empty array if the count is 0.
///
/// # Errors
/// An invalid argument with the text `refusal`, if the pointer is null or misaligned and the count is not 0, or the
/// array is larger than memory can be.
///
/// # Safety
/// Any other pointer is valid for reads of `count` elements while the result is used.
pub(crate) unsafe fn array<'a, T>(
    pointer: *const T,
    count: usize,
    refusal: &'static CStr,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    let fits = count.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= isize::MAX as usize);
    if pointer.is_null() || !pointer.is_aligned() || !fits {
        return Err(Failure::invalid_argument(refusal));
    }
    // SAFETY: not null, aligned, not too large; valid for reads by the contract of this function.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// A struct of the caller's, copied; `None` for a null pointer.
///
/// # Errors
/// An invalid argument with the text `refusal`, if the pointer is misaligned.
///
/// # Safety
/// Any other pointer is valid for a read.
pub(crate) unsafe fn copied<T: Copy>(
    pointer: *const T,
    refusal: &'static CStr,
) -> Result<Option<T>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    if !pointer.is_aligned() {
        return Err(Failure::invalid_argument(refusal));
    }
    // SAFETY: neither null nor misaligned; valid for a read by the contract of this function.
    Ok(Some(unsafe { *pointer }))
}
