//! The debug check of the lock order: a thread that holds an allocator mutex takes no other lock and never
//! attaches to or detaches from an interpreter.
//!
//! A thread-local counter, kept only with debug assertions; it counts the mutexes of *all* allocators, since
//! an [`Unlocked`](crate::Unlocked) proof speaks of one allocator only.

#[cfg(debug_assertions)]
crate::sync::thread_local! {
    static HELD: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Records that this thread now holds an allocator mutex. Who waits for one calls [`assert_unlocked`] before; a free
/// never waits and must never panic, so it may take a second one.
#[inline]
pub(crate) fn acquired() {
    #[cfg(debug_assertions)]
    HELD.with(|held| held.set(held.get() + 1));
}

/// Records that this thread released an allocator mutex.
#[inline]
pub(crate) fn released() {
    #[cfg(debug_assertions)]
    HELD.with(|held| held.set(held.get() - 1));
}

/// Checks that this thread holds no allocator mutex; `action` names what it is about to do.
///
/// # Panics
/// With debug assertions, if it holds one, unless it is already panicking. Without them it does nothing.
#[inline]
pub fn assert_unlocked(action: &str) {
    #[cfg(debug_assertions)]
    if HELD.with(std::cell::Cell::get) != 0 && !std::thread::panicking() {
        panic!("lock order violated: tried to {action} while holding an allocator mutex");
    }
    #[cfg(not(debug_assertions))]
    let _ = action;
}
