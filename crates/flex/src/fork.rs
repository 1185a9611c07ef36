//! Whether this process is the forked child of the one that made the allocators.
//!
//! A child inherits mutexes in whatever state its parent's threads left them, so it must not touch them: every
//! lock, re-lock, wait and free looks at this flag first. Setting it is all that the child handler does.

use std::sync::atomic::{AtomicBool, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);

/// The process is a forked child; its allocators are unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forked;

/// Marks this process as a forked child. Async-signal-safe: meant for `pthread_atfork`'s child handler.
pub fn mark_forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Whether this process is a forked child.
#[inline]
pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

impl From<Forked> for crate::error::FlexError {
    fn from(_: Forked) -> Self {
        crate::error::FlexError::Forked
    }
}
