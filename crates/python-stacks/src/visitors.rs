//! Who is reading, so that the end of the interpreter can wait for them.
//!
//! When CPython is finalized it frees the thread states of threads that are still running; one that reads its frames
//! at that moment would read freed memory. So the door is closed before, and whoever is inside is waited for. The count
//! is split, so that threads do not share a cache line for it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PARTS: usize = 16;

/// How often it is looked whether the last one has left.
const POLL: Duration = Duration::from_micros(100);

#[derive(Default)]
#[repr(align(128))]
struct Part(AtomicU32);

/// The door and the count.
#[derive(Default)]
pub(crate) struct Visitors {
    closed: AtomicBool,
    inside: [Part; PARTS],
}

/// A thread that is inside.
pub(crate) struct Visit<'a>(&'a Part);

impl Visitors {
    /// Lets the calling thread in, unless the door is closed.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Visit<'_>> {
        // Threads are told apart by where their stacks lie.
        let here = 0_u8;
        let part = &self.inside[(std::ptr::from_ref(&here).addr() >> 21) % PARTS];
        // Sequentially consistent with `close`: either it sees this thread, or this thread sees the door closed.
        part.0.fetch_add(1, Ordering::SeqCst);
        let visit = Visit(part);
        (!self.closed.load(Ordering::SeqCst)).then_some(visit)
    }

    /// Closes the door for ever, and waits for those inside; false if someone was still there at the end.
    pub(crate) fn close(&self, timeout: Duration) -> bool {
        self.closed.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + timeout;
        while self.inside.iter().any(|part| part.0.load(Ordering::SeqCst) != 0) {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(POLL);
        }
        true
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_waits_for_those_inside_and_lets_nobody_in() {
        let visitors = Visitors::default();
        let visit = visitors.enter();
        assert!(visit.is_some());
        assert!(!visitors.close(Duration::from_millis(1)), "someone is inside");
        assert!(visitors.enter().is_none(), "closed");
        drop(visit);
        assert!(visitors.close(Duration::from_millis(1)));
    }
}
