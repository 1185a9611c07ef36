//! The lock that the calling thread has been handed.
//!
//! While a C callback runs, its *frame* is on the stack of its thread, and the thread-local `CURRENT` points to it.
//! `FlexLock *` is the address of the frame, and is only ever compared: a pointer that is not the current frame of
//! the calling thread is refused, so neither a lock that was kept, nor another thread's, nor garbage is followed.
//!
//! `CURRENT` is null exactly while this thread may do what it likes: outside callbacks, inside `flex_unlocked`, and
//! inside a previous callback that was called, which looks after the mutex itself. Lock: a thread with a current
//! frame holds the allocator mutex.

use std::any::Any;
use std::cell::Cell;
use std::ptr;

use flex::AllocatorGuard;
use flex::pressure::PressureRequest;

use crate::pressure::FlexLock;
use crate::status::{Failure, FlexStatus};

/// One call of a C callback.
struct Frame {
    /// Valid as long as the frame; used only while the frame is current, by its own thread. The true lifetime of the
    /// guard is erased, so that every use is generic over it.
    guard: *mut AllocatorGuard<'static>,
    /// As `guard`.
    request: *mut PressureRequest,
    /// What was released with the mutex held.
    kept: Vec<Box<dyn Any>>,
}

thread_local! {
    static CURRENT: Cell<*mut Frame> = const { Cell::new(ptr::null_mut()) };
}

/// Makes a frame, or none, the current one until dropped.
struct Current {
    before: *mut Frame,
}

impl Current {
    fn set(frame: *mut Frame) -> Self {
        Current { before: CURRENT.replace(frame) }
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// Whether this thread holds an allocator mutex that it was handed as a `FlexLock`.
pub(crate) fn is_locked() -> bool {
    !CURRENT.get().is_null()
}

/// Calls `body` with a lock that stands for `guard` and `request`, then drops what it released, unlocked.
pub(crate) fn enter<R>(
    guard: &mut AllocatorGuard<'_>,
    request: &mut PressureRequest,
    body: impl FnOnce(*mut FlexLock) -> R,
) -> R {
    let mut frame =
        Frame { guard: ptr::from_mut(guard).cast(), request: ptr::from_mut(request), kept: Vec::new() };
    let frame_pointer = ptr::from_mut(&mut frame);
    let current = Current::set(frame_pointer);
    let result = body(frame_pointer.cast());
    drop(current);
    // SAFETY: the frame is this function's own; nobody else uses it once it is no longer current.
    let kept = unsafe { ptr::replace(&raw mut (*frame_pointer).kept, Vec::new()) };
    if !kept.is_empty() {
        // SAFETY: made from `guard`, which is borrowed for this whole call.
        let guard = unsafe { &mut *(*frame_pointer).guard };
        // In a forked child the allocator's own next look at the mutex says so; dropping does nothing there.
        let _ = guard.unlocked(|_| drop(kept));
    }
    result
}

/// The guard and the request of a lock, for looking.
///
/// # Errors
/// [`FlexStatus::FLEX_NOT_LOCKED`] if `lock` is not the current lock of this thread.
pub(crate) fn with<R>(
    lock: *mut FlexLock,
    look: impl FnOnce(&mut AllocatorGuard<'_>, &mut PressureRequest) -> R,
) -> Result<R, Failure> {
    let frame = current(lock)?;
    // SAFETY: the current frame lives on this thread's stack, with the guard and request it was made from. They are
    // not in use: `look` is ours and calls nothing of this ABI, and all else makes the frame not current first.
    Ok(unsafe { look(&mut *(*frame).guard, &mut *(*frame).request) })
}

/// As [`with`], for code that releases the mutex and may use this ABI while it is free. Drops what was released.
///
/// # Errors
/// As for [`with`].
pub(crate) fn lend<R>(
    lock: *mut FlexLock,
    act: impl FnOnce(&mut AllocatorGuard<'_>, &mut PressureRequest) -> R,
) -> Result<R, Failure> {
    let frame = current(lock)?;
    let _not_current = Current::set(ptr::null_mut());
    // SAFETY: as in `with`; no use through a lock overlaps, since the frame is not current meanwhile.
    unsafe {
        let kept = ptr::replace(&raw mut (*frame).kept, Vec::new());
        let guard = &mut *(*frame).guard;
        if !kept.is_empty() {
            guard.unlocked(|_| drop(kept))?;
        }
        Ok(act(guard, &mut *(*frame).request))
    }
}

fn current(lock: *mut FlexLock) -> Result<*mut Frame, Failure> {
    let frame = CURRENT.get();
    if lock.is_null() || frame.cast() != lock {
        let text = c"not a lock that this thread may use now: unlocked, another thread's, of an ended call, or garbage";
        return Err(Failure::fixed(FlexStatus::FLEX_NOT_LOCKED, text));
    }
    Ok(frame)
}

/// Drops a value; if this thread has a lock, when that is released.
pub(crate) fn release<T: 'static>(value: T) {
    drop(keep_while_locked(value));
}

/// Returns a value, unless this thread has a lock: then it is kept and dropped when the mutex is free.
pub(crate) fn keep_while_locked<T: 'static>(value: T) -> Option<T> {
    let frame = CURRENT.get();
    if frame.is_null() {
        return Some(value);
    }
    // SAFETY: the current frame lives on this thread's stack; nothing else refers to its `kept` now.
    unsafe { (*frame).kept.push(Box::new(value)) };
    None
}
