//! A forked child: its allocators are unusable, and nothing it does touches what its parent's threads may hold.
//!
//! Every test forks, since the mark of a forked child is one per process. The child ends with `_exit`.

#[path = "common/support.rs"]
mod support;

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use flex::fork::mark_forked;
use flex::gate::{Gate, PolicySettings};
use flex::pressure::Verdict;
use flex::{AllocationDirective, FlexError};
use interpreter::FakeInterpreter;
use support::*;

#[path = "common/interpreter.rs"]
mod interpreter;

/// Runs `child` in a forked child, marked as one, and expects it to return true. May be called by a thread that
/// will itself return in the child.
fn in_forked_child(child: impl FnOnce() -> bool) {
    // SAFETY: the child runs only code that looks at the fork mark before it touches any lock of another thread,
    // and leaves without destructors.
    unsafe {
        match libc::fork() {
            0 => {
                mark_forked();
                libc::alarm(20);
                let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
                libc::_exit(i32::from(!passed));
            }
            child => assert_eq!(exit_status(child), Some(0), "the child failed"),
        }
    }
}

/// The exit code of a child; `None` if a signal ended it.
fn exit_status(child: libc::pid_t) -> Option<i32> {
    let mut status = 0;
    // SAFETY: waits for a child of this process, with a place for its status.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited, child);
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

#[test]
fn a_child_forked_while_another_thread_holds_the_mutex_fails_cleanly() {
    let _watchdog = watchdog();
    let allocator = allocator(64 * KIB);
    let kept = allocate(&allocator, 4 * KIB).unwrap();
    let near = kept.reference();
    let block = allocate(&allocator, 4 * KIB).unwrap().into_block().unwrap();
    let mut dropped = Some(allocate(&allocator, 4 * KIB).unwrap());
    let (locked, wait_locked) = mpsc::channel();
    let (go_on, wait_to_go_on) = mpsc::channel();
    thread::scope(|scope| {
        // Dropped here when a check fails, which ends the holder's wait.
        let go_on = go_on;
        let remote = allocator.clone();
        let holder = scope.spawn(move || {
            remote.while_locked(|| {
                locked.send(()).unwrap();
                wait(&wait_to_go_on);
            })
        });
        wait(&wait_locked);
        in_forked_child(|| {
            drop(dropped.take());
            matches!(allocate(&allocator, 128), Err(FlexError::Forked))
                && matches!(allocator.statistics(), Err(FlexError::Forked))
                && matches!(allocator.empty_cache(), Err(FlexError::Forked))
                && matches!(allocator.set_memory_pressure_callback(None), Err(FlexError::Forked))
                && matches!(allocator.validate(), Err(FlexError::Forked))
                && allocator.free_block(block).is_ok()
                // A free does nothing here, not even onto the list: it may be repeated.
                && allocator.free_block(block).is_ok()
                && !near.is_live()
        });
        go_on.send(()).unwrap();
        holder.join().unwrap().unwrap();
    });
    assert!(near.is_live());
    allocator.free_block(block).unwrap();
    drop((kept, dropped));
    check(&allocator, 0);
}

#[test]
fn a_child_forked_inside_a_callback_gets_its_error() {
    let _watchdog = watchdog();
    let allocator = allocator(64 * KIB);
    let hoard = Hoard::of(allocate_many(&allocator, 16, 4 * KIB));
    let blocks = hoard.clone();
    let parent = std::process::id();
    set_callback(&allocator, move |guard, request| {
        let child_status = guard.unlocked(|_| {
            // SAFETY: as in `in_forked_child`; the child leaves at the end of the test.
            let child = unsafe { libc::fork() };
            if child == 0 {
                mark_forked();
                return None;
            }
            blocks.free_one();
            Some(exit_status(child))
        });
        match child_status {
            Ok(status) => assert_eq!(status, Some(Some(0)), "the child failed"),
            Err(flex::Forked) => {
                assert!(guard.search(request).is_err() && guard.statistics().is_err());
                assert!(guard.unlocked(|_| ()).is_err(), "the body does not run");
            }
        }
        Verdict::Retry
    });
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| allocate(&allocator, 4 * KIB)));
    if std::process::id() != parent {
        let forked = matches!(result, Ok(Err(FlexError::Forked)));
        drop(hoard.take());
        // SAFETY: ends the child without destructors.
        unsafe { libc::_exit(i32::from(!forked)) };
    }
    drop(result.unwrap().unwrap());
    check(&allocator, 15 * 4 * KIB);
}

#[test]
fn a_child_forked_while_a_collection_is_in_flight_neither_waits_nor_collects() {
    let _watchdog = watchdog();
    let interpreter = Arc::new(FakeInterpreter::default());
    let settings = PolicySettings { timeout: Duration::from_secs(30), ..PolicySettings::default() };
    let gate = Gate::new(interpreter.clone(), settings);
    let allocator = allocator(64 * KIB);
    allocator.set_memory_pressure_callback(Some(gate.ladder())).unwrap();
    interpreter.add_garbage(allocate_many(&allocator, 16, 4 * KIB));
    let finalizer = interpreter.pause_in_finalizer();
    thread::scope(|scope| {
        let request = scope.spawn(|| allocate(&allocator, 4 * KIB).unwrap());
        wait(&finalizer.entered);
        in_forked_child(|| {
            let forked = matches!(allocate(&allocator, 4 * KIB), Err(FlexError::Forked));
            gate.close();
            forked
                && matches!(
                    allocator.allocate_block(1, &AllocationDirective::default()),
                    Err(FlexError::Forked)
                )
        });
        finalizer.go_on.send(()).unwrap();
        drop(request.join().unwrap());
    });
    gate.close();
    check(&allocator, 0);
}

/// A finalizer that forks, and tells the parent how the child ended.
fn forking_finalizer(interpreter: &FakeInterpreter) -> mpsc::Receiver<Option<i32>> {
    let (tell, told) = mpsc::channel();
    interpreter.add_finalizer(move || {
        // SAFETY: the child looks at the fork mark before it touches a lock of another thread, and ends without
        // destructors: on the collector thread by the reclaimer, else at the end of the test.
        match unsafe { libc::fork() } {
            0 => mark_forked(),
            child => tell.send(exit_status(child)).unwrap(),
        }
    });
    told
}

#[test]
fn a_child_forked_by_a_finalizer_ends_or_gets_its_error() {
    let _watchdog = watchdog();
    let parent = std::process::id();
    for attached in [false, true] {
        let interpreter = Arc::new(FakeInterpreter::default());
        let gate = Gate::new(interpreter.clone(), PolicySettings::default());
        let allocator = allocator(64 * KIB);
        allocator.set_memory_pressure_callback(Some(gate.ladder())).unwrap();
        interpreter.add_garbage(allocate_many(&allocator, 16, 4 * KIB));
        let told = forking_finalizer(&interpreter);
        let request = || allocate(&allocator, 4 * KIB);
        let result = if attached { interpreter.python_thread(request) } else { request() };
        if std::process::id() != parent {
            // Only the thread that was attached gets here: a child of the collector thread has no other thread.
            let forked = attached && matches!(result, Err(FlexError::Forked));
            // SAFETY: ends the child without destructors.
            unsafe { libc::_exit(i32::from(!forked)) };
        }
        drop(result.unwrap());
        assert_eq!(wait(&told), Some(0), "the child failed");
        gate.close();
        check(&allocator, 0);
    }
}
