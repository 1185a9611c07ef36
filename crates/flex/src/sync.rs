//! Locks, atomics, threads and the clock: std's, or in the models those of loom or shuttle.
//!
//! Whatever the allocator and the gate synchronise with comes from here, so that what the models check is the
//! code that runs. `--cfg loom` and `--cfg shuttle` change the crate's own unit tests only; everywhere else this
//! module is nothing but other names for std.
//!
//! From std in any case: `Arc` and `OnceLock` (std answers for them; loom's `Arc` cannot hold a trait object), the
//! fork flag (set once, by a signal handler), and counters that nothing is decided by.

#[cfg(all(test, any(loom, shuttle)))]
pub(crate) mod model;

#[cfg(all(test, any(loom, shuttle)))]
pub(crate) use model::{Condvar, Mutex, MutexGuard, atomic, catch_unwind, newest, now, thread, thread_local};

#[cfg(not(all(test, any(loom, shuttle))))]
pub(crate) use self::real::{
    Condvar, Mutex, MutexGuard, atomic, catch_unwind, newest, now, thread, thread_local,
};

#[cfg(not(all(test, any(loom, shuttle))))]
mod real {
    pub(crate) use std::panic::catch_unwind;
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic};
    pub(crate) use std::{thread, thread_local};

    /// Reads a value that others change by read-modify-writes that acquire and release. If it is 0, the read is one of
    /// them: it comes before or after each of the others, and the later one sees what the earlier one's thread did.
    #[inline]
    pub(crate) fn newest(value: &atomic::AtomicU32) -> u32 {
        // Not `fetch_or(0)`: compilers make that a fence and a load, which is slower.
        let read = value.compare_exchange(0, 0, atomic::Ordering::AcqRel, atomic::Ordering::Relaxed);
        read.unwrap_or_else(|value| value)
    }

    /// The time.
    #[inline]
    pub(crate) fn now() -> std::time::Instant {
        std::time::Instant::now()
    }
}
