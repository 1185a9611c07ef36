//! Which thread an event is of. No lock; asked once for each thread.

use std::cell::Cell;

/// The system's number of the calling thread.
pub(crate) fn thread_id() -> u32 {
    thread_local! {
        static ID: Cell<u32> = const { Cell::new(0) };
    }
    ID.with(|id| {
        if id.get() == 0 {
            id.set(new_thread_id());
        }
        id.get()
    })
}

#[cfg(target_os = "linux")]
fn new_thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Where the system has no such number: one that no other thread of the process has.
#[cfg(not(target_os = "linux"))]
fn new_thread_id() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
