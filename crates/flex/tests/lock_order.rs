//! The debug check of the lock order. Without debug assertions there is nothing to test.
#![cfg(debug_assertions)]

#[path = "common/support.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};

use flex::pressure::Verdict;
use flex::rank::assert_unlocked;
use support::*;

/// What a call panics with, or nothing.
fn panic_text<R>(act: impl FnOnce() -> R) -> Option<String> {
    let payload = catch_unwind(AssertUnwindSafe(|| drop(act()))).err()?;
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
}

/// Stands for attaching to an interpreter.
fn attach() {
    assert_unlocked("attach");
}

#[test]
fn a_callback_that_did_not_unlock_must_not_lock_another_allocator() {
    let (first, second) = (allocator(KIB), allocator(KIB));
    let _full = allocate(&first, KIB).unwrap();
    let other = second.clone();
    set_callback(&first, move |guard, _| {
        guard.unlocked(|_| other.statistics().unwrap()).unwrap();
        other.statistics().unwrap();
        Verdict::GiveUp
    });
    let text = panic_text(|| allocate(&first, KIB)).unwrap();
    assert_eq!(text, "lock order violated: tried to lock an allocator while holding an allocator mutex");
    check(&first, KIB);
    check(&second, 0);
}

#[test]
fn nobody_attaches_under_the_mutex() {
    let allocator = allocator(KIB);
    let _full = allocate(&allocator, KIB).unwrap();
    attach();
    set_callback(&allocator, |guard, _| {
        guard.unlocked(|_| attach()).unwrap();
        attach();
        Verdict::GiveUp
    });
    let text = panic_text(|| allocate(&allocator, KIB)).unwrap();
    assert_eq!(text, "lock order violated: tried to attach while holding an allocator mutex");
    attach();
    check(&allocator, KIB);
}

#[test]
fn a_thread_that_panics_already_is_left_alone() {
    struct AttachOnDrop;
    impl Drop for AttachOnDrop {
        fn drop(&mut self) {
            attach();
        }
    }
    let allocator = allocator(KIB);
    let text = panic_text(|| {
        allocator.while_locked(|| {
            let _attach = AttachOnDrop;
            panic!("the first panic")
        })
    });
    assert_eq!(text.as_deref(), Some("the first panic"));
    attach();
    check(&allocator, 0);
}

#[test]
fn a_free_under_another_mutex_is_no_violation() {
    let (first, second) = (allocator(KIB), allocator(KIB));
    let (here, there) = (allocate(&first, 512).unwrap(), allocate(&second, 512).unwrap());
    assert_eq!(panic_text(|| first.while_locked(|| drop((here, there)))), None);
    check(&first, 0);
    check(&second, 0);
}

#[test]
fn the_previous_callback_is_handed_over_under_the_mutex() {
    let allocator = allocator(KIB);
    set_callback(&allocator, |_, _| Verdict::GiveUp);
    let (text, previous) =
        allocator.exchange_memory_pressure_callback(None, |previous| (panic_text(attach), previous)).unwrap();
    assert_eq!(text.unwrap(), "lock order violated: tried to attach while holding an allocator mutex");
    assert!(previous.is_some());
    check(&allocator, 0);
}
