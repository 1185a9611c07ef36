//! Requests from inside a collection: they fail at once, and nobody waits for them.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use flex::OutOfMemory;
use flex::pressure::SkipReason;
use flex::pressure::collecting::{self, Gaps};

use crate::gate_world::*;
use crate::support::*;

/// Adds a finalizer that allocates beyond exhaustion, and says what came of it and how long it took.
fn allocating_finalizer(world: &World) -> mpsc::Receiver<(OutOfMemory, Duration)> {
    let (allocator, (tell, told)) = (world.allocator.clone(), mpsc::channel());
    world.interpreter.add_finalizer(move || {
        let began = Instant::now();
        let report = expect_out_of_memory(allocate(&allocator, BLOCK));
        tell.send((report, began.elapsed())).unwrap();
    });
    told
}

fn expect_reentrant(told: &mpsc::Receiver<(OutOfMemory, Duration)>) {
    let (report, elapsed) = wait(told);
    assert_eq!(report.reclaim.skipped, Some(SkipReason::Reentrant));
    assert!(elapsed < Duration::from_secs(5), "at once, not at the deadline: {elapsed:?}");
}

#[test]
fn a_finalizer_of_an_inline_collection_that_allocates() {
    let world = World::new();
    world.fill_with_garbage();
    let told = allocating_finalizer(&world);
    drop(world.interpreter.python_thread(|| world.allocate()).unwrap());
    expect_reentrant(&told);
    assert_eq!((world.events(), world.skipped(SkipReason::Reentrant)), ((2, 1, 1), 1));
    assert_eq!(world.collector_threads(), 0);
}

#[test]
fn a_finalizer_on_the_collector_thread_that_allocates() {
    let world = World::new();
    world.fill_with_garbage();
    let told = allocating_finalizer(&world);
    drop(world.allocate().unwrap());
    expect_reentrant(&told);
    assert_eq!((world.events(), world.skipped(SkipReason::Reentrant)), ((2, 1, 1), 1));
    assert_eq!((world.collector_threads(), load(&world.interpreter.hints_asked)), (1, 0));
}

#[test]
fn a_finalizer_of_the_programs_own_collection_that_allocates() {
    let world = World::new();
    world.fill_with_garbage();
    let told = allocating_finalizer(&world);
    world.interpreter.python_thread(|| world.interpreter.user_collect());
    expect_reentrant(&told);
    assert_eq!((world.events(), world.collections()), ((1, 0, 1), (0, 0)));
    drop(world.allocate().unwrap());
}

#[test]
fn it_does_not_wait_for_a_flight_that_waits_for_its_own_collection() {
    let world = World::new();
    world.fill_with_garbage();
    let finalizer = world.interpreter.pause_in_finalizer();
    let told = allocating_finalizer(&world);
    thread::scope(|scope| {
        scope.spawn(|| world.interpreter.python_thread(|| world.interpreter.user_collect()));
        wait(&finalizer.entered);
        // This request's flight waits for the program's collection, which goes on to allocate.
        let request = scope.spawn(|| world.interpreter.python_thread(|| world.allocate()).unwrap());
        world.interpreter.wait_for_refused(1);
        finalizer.go_on.send(()).unwrap();
        expect_reentrant(&told);
        drop(request.join().unwrap());
    });
    assert_eq!(world.events(), (2, 1, 1));
}

#[test]
fn a_mark_from_before_a_gap_is_no_reason_to_fail() {
    for shares in [true, false] {
        let world = World::new();
        world.fill_with_garbage();
        thread::scope(|scope| {
            let finalizer = world.paused_program_collection(scope);
            // A flight that waits for the program's collection.
            let first = shares.then(|| {
                let first = scope.spawn(|| world.interpreter.python_thread(|| world.allocate()).unwrap());
                world.interpreter.wait_for_waiting_threads(1);
                first
            });
            // This thread's mark is left from a collection whose end nobody saw.
            let marked = scope.spawn(|| {
                collecting::begin_foreign(Gaps(0));
                world.interpreter.gaps.store(1, Ordering::SeqCst);
                world.interpreter.python_thread(|| world.allocate()).unwrap()
            });
            world.interpreter.wait_for_waiting_threads(1 + usize::from(shares));
            finalizer.go_on.send(()).unwrap();
            drop((first.map(|first| first.join().unwrap()), marked.join().unwrap()));
        });
        let served = 1 + u64::from(shares);
        assert_eq!((world.events(), world.skipped(SkipReason::Reentrant)), ((served, served, 0), 0));
    }
}
