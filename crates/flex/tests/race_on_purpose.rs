//! A data race, for `scripts/tsan.sh`: ThreadSanitizer must see it. Ignored in every other run.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::thread;

struct Racy(UnsafeCell<u64>);

// SAFETY: none. The race is the point, and the test runs only where it is caught.
unsafe impl Sync for Racy {}

#[test]
#[ignore = "races on purpose, for ThreadSanitizer"]
fn two_threads_write_without_a_lock() {
    let shared = Arc::new(Racy(UnsafeCell::new(0)));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for _ in 0..1000 {
                    // SAFETY: none, as above; the pointer itself is valid.
                    unsafe { *shared.0.get() += 1 };
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(unsafe_read(&shared) > 0);
}

fn unsafe_read(shared: &Racy) -> u64 {
    // SAFETY: the threads have been joined.
    unsafe { *shared.0.get() }
}
