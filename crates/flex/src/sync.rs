//! Locks, atomics, threads and the clock: std's, or in the models those of loom or shuttle.
//!
//! Whatever the allocator and the gate synchronise with comes from here, so that what the models check is the
//! code that runs. `--cfg loom` and `--cfg shuttle` change the crate's own unit tests only; everywhere else this
//! module is nothing but other names for std.
//!
//! From std in any case: `OnceLock` and nearly every `Arc` (std answers for them; loom's `Arc` cannot hold a trait
//! object and has no `Weak`), the fork flag (set once, by a signal handler), and counters that nothing is decided by.

#[cfg(all(test, any(loom, shuttle)))]
pub(crate) mod model;

#[cfg(all(test, any(loom, shuttle)))]
pub(crate) use model::{
    Arc, Condvar, Mutex, MutexGuard, atomic, barrier, catch_unwind, newest, now, thread, thread_local, zeroed,
};

#[cfg(not(all(test, any(loom, shuttle))))]
pub(crate) use self::real::{
    Arc, Condvar, Mutex, MutexGuard, atomic, barrier, catch_unwind, newest, now, thread, thread_local, zeroed,
};

#[cfg(not(all(test, any(loom, shuttle))))]
mod real {
    pub(crate) use std::panic::catch_unwind;
    pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, atomic};
    pub(crate) use std::{thread, thread_local};

    /// Reads a value that others change by read-modify-writes that acquire and release. If it is 0, the read is one of
    /// them: it comes before or after each of the others, and the later one sees what the earlier one's thread did.
    #[inline]
    pub(crate) fn newest(value: &atomic::AtomicU32) -> u32 {
        // Not `fetch_or(0)`: compilers make that a fence and a load, which is slower.
        let read = value.compare_exchange(0, 0, atomic::Ordering::AcqRel, atomic::Ordering::Relaxed);
        read.unwrap_or_else(|value| value)
    }

    /// So many slots of numbers that are 0, of which the system commits those that are written; `None` if it has none.
    pub(crate) fn zeroed<const WORDS: usize>(slots: usize) -> Option<Box<[[atomic::AtomicU64; WORDS]]>> {
        use zerocopy::FromZeros;
        <[[atomic::AtomicU64; WORDS]]>::new_box_zeroed_with_elems(slots).ok()
    }

    pub(crate) mod barrier {
        //! A pair of barriers of which one costs nothing. Of two threads of which each stores, passes one of them and
        //! then loads what the other stored, at least one sees the other's store; one of the two barriers is `heavy`.

        use std::sync::LazyLock;
        use std::sync::atomic::{Ordering, compiler_fence, fence};

        /// Whether the kernel has all running threads of the process pass a barrier when asked.
        #[cfg(target_os = "linux")]
        static ON_DEMAND: LazyLock<bool> = LazyLock::new(|| {
            use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};
            let register = MembarrierCommand::RegisterPrivateExpedited;
            membarrier_query().contains_command(register) && membarrier(register).is_ok()
        });
        #[cfg(not(target_os = "linux"))]
        static ON_DEMAND: LazyLock<bool> = LazyLock::new(|| false);

        /// Asks the kernel once, which may take milliseconds.
        pub(crate) fn prepare() {
            LazyLock::force(&ON_DEMAND);
        }

        /// For the thread that passes it often.
        #[inline]
        pub(crate) fn light() {
            if *ON_DEMAND { compiler_fence(Ordering::SeqCst) } else { fence(Ordering::SeqCst) }
        }

        /// For the thread that passes it seldom: some microseconds, in which running threads are interrupted.
        pub(crate) fn heavy() {
            fence(Ordering::SeqCst);
            #[cfg(target_os = "linux")]
            if *ON_DEMAND {
                use rustix::thread::{MembarrierCommand, membarrier};
                let passed = membarrier(MembarrierCommand::PrivateExpedited);
                debug_assert!(passed.is_ok(), "registered: {passed:?}");
            }
        }
    }

    /// The time.
    #[inline]
    pub(crate) fn now() -> std::time::Instant {
        std::time::Instant::now()
    }
}
