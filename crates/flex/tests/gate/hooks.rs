//! User hooks: one run at a time, what they allocate runs no hooks, and requests that wait for a run search after it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use flex::Unlocked;
use flex::gate::{HookEvent, PressureHook};
use flex::pressure::SkipReason;

use crate::gate_world::*;
use crate::support::*;

struct Hook<F>(F);

impl<F: Fn() + Send + Sync> PressureHook for Hook<F> {
    fn run(&self, _proof: &Unlocked<'_>, _event: &HookEvent) -> bool {
        (self.0)();
        true
    }
}

fn register(world: &World, act: impl Fn() + Send + Sync + 'static) {
    assert!(world.gate.register_hook(0, Arc::new(Hook(act))).is_ok());
}

/// Two requests under pressure, the second one while the first one's hook stands still: it gives up `blocks` blocks
/// afterwards. Returns how often hooks were called at the same time as others.
fn two_requests_and_a_slow_hook(world: &World, blocks: usize) -> u64 {
    let hoard = Hoard::of(world.fill());
    let (entered, wait_entered) = mpsc::channel();
    let (go_on, wait_to_go_on) = mpsc::channel::<()>();
    let wait_to_go_on = Mutex::new(wait_to_go_on);
    let (running, overlaps) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let interpreter = world.interpreter.clone();
    let (count, overlapped, memory) = (Arc::clone(&running), Arc::clone(&overlaps), hoard.clone());
    register(world, move || {
        overlapped.fetch_add(count.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
        interpreter.allow_threads(|| {
            entered.send(()).unwrap();
            // An overlapping call finds nobody to tell it.
            let _ = wait_to_go_on.try_lock().map(|told| wait(&told));
        });
        (0..blocks).for_each(|_| memory.free_one());
        count.fetch_sub(1, Ordering::SeqCst);
    });
    thread::scope(|scope| {
        let request = || world.interpreter.python_thread(|| world.allocate());
        let first = scope.spawn(request);
        wait(&wait_entered);
        let waits_before = load(&world.interpreter.detached_waits);
        let second = scope.spawn(request);
        // It waits for the run of the first; or it is in a run of its own, which the count shows.
        while load(&world.interpreter.detached_waits) == waits_before && load(&overlaps) == 0 {
            thread::yield_now();
        }
        go_on.send(()).unwrap();
        drop((first.join().unwrap().unwrap(), second.join().unwrap().unwrap()));
    });
    drop(hoard.take());
    load(&overlaps)
}

#[test]
fn one_request_at_a_time_runs_hooks() {
    let world = World::new();
    assert_eq!(two_requests_and_a_slow_hook(&world, 2), 0, "two hooks ran at once");
    assert_eq!((world.events(), world.pressure().hooks_run), ((2, 2, 0), 1));
    let census = world.gate.census();
    assert_eq!((census.hook_runs, census.hooks), (0, 1));
}

/// A hook whose own allocation fails; what came of that, and whether it came before the deadline of 30 s.
fn expect_nested_failure(world: &World, request: impl FnOnce()) {
    let hoard = Hoard::of(world.fill());
    let (allocator, memory, (tell, told)) = (world.allocator.clone(), hoard.clone(), mpsc::channel());
    register(world, move || {
        let began = std::time::Instant::now();
        let report = expect_out_of_memory(allocate(&allocator, BLOCK));
        tell.send((report.reclaim.skipped, began.elapsed())).unwrap();
        memory.free_one();
    });
    request();
    let (skipped, elapsed) = wait(&told);
    assert_eq!(skipped, Some(SkipReason::Reentrant));
    assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
    assert_eq!((world.events(), world.pressure().hooks_run), ((2, 1, 1), 1));
    drop(hoard.take());
}

#[test]
fn a_hook_on_the_requesting_thread_that_allocates_runs_no_hooks() {
    let world = World::new();
    expect_nested_failure(&world, || {
        drop(world.interpreter.python_thread(|| world.allocate()).unwrap());
    });
}

#[test]
fn a_hook_on_the_collector_thread_that_allocates_runs_no_hooks() {
    let world = World::new();
    expect_nested_failure(&world, || drop(world.allocate().unwrap()));
}
