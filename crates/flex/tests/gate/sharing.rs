//! Several requests and one collection: who waits for whom, and what counts.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use flex::gate::Census;
use flex::pressure::SkipReason;

use crate::gate_world::*;
use crate::support::*;

#[test]
fn a_flight_that_began_before_the_failure_does_not_count() {
    let world = World::new();
    // The first collection frees one block, which its own request takes.
    let mut blocks = world.fill();
    world.interpreter.add_garbage(vec![blocks.pop().unwrap()]);
    world.interpreter.add_garbage(blocks);
    let finalizer = world.interpreter.pause_in_finalizer();
    thread::scope(|scope| {
        let first = scope.spawn(|| world.interpreter.python_thread(|| world.allocate()).unwrap());
        wait(&finalizer.entered);
        let second = scope.spawn(|| {
            let twice = || allocate(&world.allocator, 2 * BLOCK).unwrap();
            world.interpreter.python_thread(twice)
        });
        world.interpreter.wait_for_detached(1);
        finalizer.go_on.send(()).unwrap();
        drop((first.join().unwrap(), second.join().unwrap()));
    });
    // The second request saw the first collection end and ran one of its own.
    assert_eq!((world.events(), world.collections()), ((2, 2, 0), (0, 2)));
    assert_eq!(world.pressure().coalesced, 0);
}

#[test]
fn a_request_that_fails_has_seen_a_whole_collection_after_its_failure() {
    let world = World::new();
    let live = world.fill();
    let first_collection = world.interpreter.pause_in_finalizer();
    let second_collection = world.interpreter.pause_in_finalizer_of(2);
    let reports = thread::scope(|scope| {
        let request = || world.interpreter.python_thread(|| expect_out_of_memory(world.allocate()));
        let first = scope.spawn(request);
        wait(&first_collection.entered);
        let (second, third) = (scope.spawn(request), scope.spawn(request));
        world.interpreter.wait_for_detached(2);
        first_collection.go_on.send(()).unwrap();
        // It began too early for both. One of them runs the next, which began after the other had failed.
        wait(&second_collection.entered);
        world.interpreter.wait_for_detached(3);
        second_collection.go_on.send(()).unwrap();
        [first, second, third].map(|request| request.join().unwrap())
    });
    for report in reports {
        assert_eq!((report.reclaim.full_collections, report.reclaim.skipped), (1, None));
    }
    assert_eq!((world.events(), world.collections()), ((3, 0, 3), (0, 2)));
    drop(live);
}

#[test]
fn a_request_rescued_by_a_flight_of_another_is_coalesced() {
    let world = World::new();
    world.fill_with_garbage();
    let finalizer = world.interpreter.pause_in_finalizer();
    thread::scope(|scope| {
        let first = scope.spawn(|| world.interpreter.python_thread(|| world.allocate()).unwrap());
        wait(&finalizer.entered);
        let request = || world.interpreter.python_thread(|| world.allocate()).unwrap();
        let others: Vec<_> = (0..3).map(|_| scope.spawn(request)).collect();
        world.interpreter.wait_for_detached(3);
        finalizer.go_on.send(()).unwrap();
        drop(first.join().unwrap());
        others.into_iter().for_each(|other| drop(other.join().unwrap()));
    });
    assert_eq!((world.events(), world.collections()), ((4, 4, 0), (0, 1)));
    assert_eq!(world.pressure().coalesced, 3);
    assert_eq!(world.skipped(SkipReason::Timeout), 0);
}

#[test]
fn a_foreign_collection_is_waited_for() {
    for attached in [true, false] {
        let world = World::new();
        world.fill_with_garbage();
        thread::scope(|scope| {
            let finalizer = world.paused_program_collection(scope);
            let request = scope.spawn(|| {
                let allocate = || world.allocate().unwrap();
                if attached { world.interpreter.python_thread(allocate) } else { allocate() }
            });
            // Ours was refused, so the request knows of the foreign one.
            world.interpreter.wait_for_refused(1);
            // A detached one waits for the collector thread, and that for the foreign collection.
            let waiting = if attached { 1 } else { 2 };
            while (world.gate.census().waiting, world.gate.census().behind_foreign) != (waiting, 1) {
                thread::yield_now();
            }
            finalizer.go_on.send(()).unwrap();
            drop(request.join().unwrap());
        });
        assert_eq!(world.gate.census(), Census::default());
        let pressure = world.pressure();
        assert_eq!((pressure.rescued, pressure.failed, pressure.collectors_abandoned), (1, 0, 0));
        assert_eq!(pressure.reclaimed_bytes, 0, "the foreign one freed it");
        assert_eq!(
            world.skipped(SkipReason::Timeout),
            0,
            "it could end, since nobody waited for it attached"
        );
        assert_eq!(pressure.collection_freed_bytes, BLOCKS as u64 * BLOCK);
    }
}

#[test]
fn a_foreign_collection_that_stops_does_not_count_as_ours() {
    for attached in [true, false] {
        let world = World::new();
        let live = world.fill();
        thread::scope(|scope| {
            let finalizer = world.paused_program_collection(scope);
            // It has begun, and will not see this garbage.
            world.interpreter.add_garbage(live);
            let request = scope.spawn(|| {
                let allocate = || world.allocate().unwrap();
                if attached { world.interpreter.python_thread(allocate) } else { allocate() }
            });
            world.interpreter.wait_for_refused(1);
            finalizer.go_on.send(()).unwrap();
            drop(request.join().unwrap());
        });
        assert_eq!((world.events(), world.collections()), ((1, 1, 0), (0, 1)));
    }
}

#[test]
fn a_foreign_collection_that_never_ends_is_no_stuck_collector() {
    for attached in [true, false] {
        let world = World::with_timeout(Duration::from_millis(150));
        let live = world.fill();
        thread::scope(|scope| {
            let finalizer = world.paused_program_collection(scope);
            for failures in 1..=2 {
                let report = expect_out_of_memory(if attached {
                    world.interpreter.python_thread(|| world.allocate())
                } else {
                    world.allocate()
                });
                assert_eq!(report.reclaim.skipped, Some(SkipReason::Timeout));
                assert!(report.reclaim.timed_out);
                assert_eq!(world.skipped(SkipReason::Timeout), failures);
            }
            finalizer.go_on.send(()).unwrap();
        });
        assert_eq!(world.pressure().collectors_abandoned, 0);
        drop(live);
        world.fill_with_garbage();
        drop(world.allocate().unwrap());
        assert_eq!(world.collections(), (0, 1));
    }
}

#[test]
fn a_panic_in_a_collection_lands_its_flight() {
    let world = World::new();
    world.fill_with_garbage();
    world.interpreter.panic_in_collect.store(true, Ordering::SeqCst);
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        world.interpreter.python_thread(|| world.allocate())
    }));
    assert!(unwound.is_err());
    assert_eq!(world.events(), (1, 0, 1));
    drop(world.interpreter.python_thread(|| world.allocate()).unwrap());
    assert_eq!((world.events(), world.collections()), ((2, 1, 1), (0, 1)));
}

#[test]
fn a_panic_on_the_collector_thread_ends_the_wait_for_it() {
    for in_attach in [false, true] {
        let world = World::new();
        let live = world.fill();
        let place =
            if in_attach { &world.interpreter.panic_in_attach } else { &world.interpreter.panic_in_collect };
        place.store(true, Ordering::SeqCst);
        let report = expect_out_of_memory(world.allocate());
        assert!(!report.reclaim.timed_out, "nobody waited for the deadline");
        assert_eq!(report.reclaim.skipped, Some(SkipReason::Uninitialized));
        assert_eq!(world.pressure().collectors_abandoned, 0);
        world.interpreter.add_garbage(live);
        drop(world.allocate().unwrap());
        assert_eq!((world.events(), world.collector_threads()), ((2, 1, 1), 1));
    }
}

#[test]
fn a_collector_thread_that_gets_no_state_does_not_leave_its_job_behind() {
    let world = World::new();
    let live = world.fill();
    world.interpreter.panic_in_new_thread.store(true, Ordering::SeqCst);
    let report = expect_out_of_memory(world.allocate());
    assert!(!report.reclaim.timed_out, "nobody waited for the deadline");
    assert_eq!(report.reclaim.skipped, Some(SkipReason::Uninitialized));
    world.interpreter.add_garbage(live);
    drop(world.allocate().unwrap());
    assert_eq!((world.events(), world.collector_threads()), ((2, 1, 1), 1));
}

#[test]
fn closing_ends_every_wait() {
    let world = World::new();
    let live = world.fill();
    let finalizer = world.interpreter.pause_in_finalizer();
    thread::scope(|scope| {
        // One waits for the collector thread, one detached for its flight, one attached.
        let first = scope.spawn(|| world.allocate());
        wait(&finalizer.entered);
        let second = scope.spawn(|| world.allocate());
        let third = scope.spawn(|| world.interpreter.python_thread(|| world.allocate()));
        world.wait_for_events(3);
        let closing = scope.spawn(|| world.gate.close());
        for request in [first, second, third] {
            let report = expect_out_of_memory(request.join().unwrap());
            assert_eq!(report.reclaim.skipped, Some(SkipReason::Finalizing));
        }
        finalizer.go_on.send(()).unwrap();
        closing.join().unwrap();
    });
    assert_eq!((world.skipped(SkipReason::Finalizing), world.events()), (3, (3, 0, 3)));
    assert_eq!(world.pressure().collectors_abandoned, 0);
    // Afterwards allocations work, without collecting.
    let report = expect_out_of_memory(world.allocate());
    assert_eq!(report.reclaim.skipped, Some(SkipReason::Finalizing));
    drop(live);
    drop(world.allocate().unwrap());
}
