//! Waits that must end: the GIL held by somebody, a stuck finalizer, and what the requests after that do.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use flex::OutOfMemory;
use flex::gate::PolicySettings;
use flex::pressure::SkipReason;

use crate::gate_world::*;
use crate::support::*;

/// A deadline that is to pass.
const TIMEOUT: Duration = Duration::from_millis(600);

/// A deadline that is not, however busy the machine.
const LONG: Duration = Duration::from_secs(30);

/// Far below it.
const FAST: Duration = Duration::from_secs(10);

/// A request that is to fail, and how long it took.
fn fail(world: &World) -> (OutOfMemory, Duration) {
    let began = Instant::now();
    let report = expect_out_of_memory(world.allocate());
    (report, began.elapsed())
}

/// Gives the requests from now on another deadline.
fn set_timeout(world: &World, timeout: Duration) {
    world.gate.set_policy(PolicySettings { timeout, ..world.gate.policy() });
}

#[test]
fn a_detached_request_does_not_wait_for_the_gil_for_ever() {
    let world = World::with_timeout(TIMEOUT);
    let live = world.fill();
    let (held, wait_held) = mpsc::channel();
    let (go_on, wait_to_go_on) = mpsc::channel();
    let interpreter = world.interpreter.clone();
    let holder = thread::spawn(move || {
        interpreter.python_thread(|| {
            held.send(()).unwrap();
            wait(&wait_to_go_on);
        });
    });
    wait(&wait_held);
    for failures in 1..=3 {
        let (report, elapsed) = fail(&world);
        assert!(elapsed >= TIMEOUT && elapsed < FAST, "{elapsed:?}");
        assert_eq!((report.reclaim.skipped, report.reclaim.timed_out), (Some(SkipReason::Timeout), true));
        assert_eq!(world.skipped(SkipReason::Timeout), failures);
        assert_eq!(world.collector_threads(), 1, "one that waits for the GIL is not replaced");
    }
    assert_eq!((world.pressure().collectors_abandoned, world.collections()), (0, (0, 0)));
    go_on.send(()).unwrap();
    holder.join().unwrap();
    // The jobs of those who gave up are not run; the next request's is.
    world.interpreter.add_garbage(live);
    drop(world.allocate().unwrap());
    assert_eq!((world.collections(), world.collector_threads()), ((0, 1), 1));
}

#[test]
fn a_stuck_finalizer_costs_one_deadline_not_one_each() {
    let world = World::with_timeout(TIMEOUT);
    let live = world.fill();
    let finalizer = world.interpreter.pause_in_finalizer();
    thread::scope(|scope| {
        let first = scope.spawn(|| fail(&world));
        wait(&finalizer.entered);
        let (report, elapsed) = first.join().unwrap();
        assert_eq!((report.reclaim.skipped, report.reclaim.timed_out), (Some(SkipReason::Timeout), true));
        assert!(elapsed >= TIMEOUT && elapsed < FAST, "{elapsed:?}");
        assert_eq!(world.pressure().collectors_abandoned, 1);
        set_timeout(&world, LONG);
        for _ in 0..5 {
            let (report, elapsed) = fail(&world);
            assert_eq!(report.reclaim.skipped, Some(SkipReason::Timeout));
            assert!(elapsed < FAST, "{elapsed:?}");
            let attached = expect_out_of_memory(world.interpreter.python_thread(|| world.allocate()));
            assert_eq!(attached.reclaim.skipped, Some(SkipReason::Timeout));
        }
        assert_eq!(world.pressure().collectors_abandoned, 1, "counted once");
        finalizer.go_on.send(()).unwrap();
    });
    world.wait_for_collections(1);
    // It has landed: the next request collects again.
    world.interpreter.add_garbage(live);
    drop(world.allocate().unwrap());
    let pressure = world.pressure();
    assert_eq!((pressure.full_collections, pressure.rescued, pressure.failed), (2, 1, 11));
    assert!(world.collector_threads() <= 2, "the stuck one and one for hints");
}

#[test]
fn closing_does_not_wait_for_a_collection_that_is_known_to_be_stuck() {
    let world = World::with_timeout(TIMEOUT / 4);
    let live = world.fill();
    let finalizer = world.interpreter.pause_in_finalizer();
    thread::scope(|scope| {
        let request = scope.spawn(|| fail(&world));
        wait(&finalizer.entered);
        request.join().unwrap();
        let began = Instant::now();
        world.gate.close();
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        finalizer.go_on.send(()).unwrap();
    });
    world.wait_for_collections(1);
    drop(live);
}

#[test]
fn somebody_short_of_time_does_not_make_others_fail() {
    let world = World::with_timeout(LONG);
    world.fill_with_garbage();
    let finalizer = world.interpreter.pause_in_finalizer();
    thread::scope(|scope| {
        let patient = scope.spawn(|| world.interpreter.python_thread(|| world.allocate()).unwrap());
        wait(&finalizer.entered);
        set_timeout(&world, TIMEOUT / 4);
        let (report, _) = fail(&world);
        assert!(report.reclaim.timed_out);
        set_timeout(&world, LONG);
        let other = scope.spawn(|| world.interpreter.python_thread(|| world.allocate()).unwrap());
        world.interpreter.wait_for_detached(1);
        finalizer.go_on.send(()).unwrap();
        drop((patient.join().unwrap(), other.join().unwrap()));
    });
    assert_eq!((world.events(), world.collections()), ((3, 2, 1), (0, 1)));
}

#[test]
fn an_inline_collection_past_its_deadline_still_rescues() {
    let world = World::with_timeout(TIMEOUT / 4);
    world.fill_with_garbage();
    let finalizer = world.interpreter.pause_in_finalizer();
    thread::scope(|scope| {
        let slow = scope.spawn(|| world.interpreter.python_thread(|| world.allocate()).unwrap());
        wait(&finalizer.entered);
        // A request that waits for it in vain makes later ones fail fast.
        assert!(fail(&world).0.reclaim.timed_out);
        set_timeout(&world, LONG);
        let began = Instant::now();
        let report = expect_out_of_memory(world.interpreter.python_thread(|| world.allocate()));
        assert!(report.reclaim.timed_out && began.elapsed() < FAST);
        finalizer.go_on.send(()).unwrap();
        drop(slow.join().unwrap());
    });
    assert_eq!(world.pressure().rescued, 1);
}

#[test]
fn a_finalizing_interpreter_answers_at_once() {
    let world = World::with_timeout(LONG);
    let live = world.fill();
    let (held, wait_held) = mpsc::channel();
    let (go_on, wait_to_go_on) = mpsc::channel();
    thread::scope(|scope| {
        let interpreter = world.interpreter.clone();
        scope.spawn(move || {
            interpreter.python_thread(|| {
                held.send(()).unwrap();
                wait(&wait_to_go_on);
            });
        });
        wait(&wait_held);
        let first = scope.spawn(|| fail(&world));
        world.interpreter.wait_for_gil_waiters(1);
        // The second request's job is queued behind the attaching collector.
        let second = scope.spawn(|| fail(&world));
        world.wait_for_events(2);
        world.interpreter.finalizing.store(true, Ordering::SeqCst);
        go_on.send(()).unwrap();
        for request in [first, second] {
            let (_, elapsed) = request.join().unwrap();
            assert!(elapsed < FAST, "{elapsed:?}");
        }
    });
    drop(live);
}
