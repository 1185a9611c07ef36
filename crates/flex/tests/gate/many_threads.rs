//! Many threads at once: collections are shared, nobody starves, nothing fails that could succeed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use flex::CompositeAddress;

use crate::gate_world::*;
use crate::support::*;

/// Throws what a thread has away and asks for as much again, beyond exhaustion.
fn churn(world: &World, allocate: &dyn Fn() -> CompositeAddress, rounds: usize) -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..rounds {
        let began = Instant::now();
        let block = allocate();
        longest = longest.max(began.elapsed());
        world.interpreter.add_to_last_layer(block);
    }
    longest
}

const THREADS: usize = 8;
const ROUNDS: usize = 150;

#[test]
fn eight_attached_threads_all_succeed() {
    let world = World::new();
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                start.wait();
                world.interpreter.python_thread(|| churn(&world, &|| world.allocate().unwrap(), ROUNDS))
            });
        }
    });
    check_shared(&world);
    assert_eq!(world.collector_threads(), 0);
}

#[test]
fn eight_detached_threads_all_succeed() {
    let world = World::new();
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (world, start) = (&world, &start);
            scope.spawn(move || {
                start.wait();
                let detached = || world.interpreter.allow_threads(|| world.allocate().unwrap());
                if thread % 2 == 0 {
                    churn(world, &|| world.allocate().unwrap(), ROUNDS)
                } else {
                    world.interpreter.python_thread(|| churn(world, &detached, ROUNDS))
                }
            });
        }
    });
    check_shared(&world);
    assert!(world.collector_threads() <= 2, "{} collector threads", world.collector_threads());
}

/// Every allocation succeeded, and collections were fewer than the events they served or as many.
fn check_shared(world: &World) {
    let pressure = world.pressure();
    assert!(pressure.events as usize >= THREADS * ROUNDS / BLOCKS - 1, "{pressure:?}");
    assert_eq!((pressure.failed, pressure.collectors_abandoned), (0, 0), "{pressure:?}");
    assert_eq!(pressure.skipped.iter().sum::<u64>(), 0, "{pressure:?}");
    assert_eq!(load(&world.interpreter.full_runs), pressure.full_collections);
    assert_eq!(load(&world.interpreter.refused_runs), 0, "one collection at a time");
}

#[test]
fn threads_that_are_exhausted_together_share_one_collection() {
    let world = World::new();
    for round in 1..=20_u64 {
        world.fill_with_garbage();
        let finalizer = world.interpreter.pause_in_finalizer();
        let waits_before = load(&world.interpreter.detached_waits);
        thread::scope(|scope| {
            let request = || world.interpreter.python_thread(|| world.allocate()).unwrap();
            let first = scope.spawn(request);
            wait(&finalizer.entered);
            let others: Vec<_> = (1..THREADS).map(|_| scope.spawn(request)).collect();
            world.interpreter.wait_for_detached(waits_before + THREADS as u64 - 1);
            finalizer.go_on.send(()).unwrap();
            drop(first.join().unwrap());
            others.into_iter().for_each(|other| drop(other.join().unwrap()));
        });
        let pressure = world.pressure();
        assert_eq!((pressure.events, pressure.full_collections), (8 * round, round));
        assert_eq!((pressure.coalesced, pressure.failed), (7 * round, 0));
    }
}

#[test]
fn a_large_request_is_not_starved_by_small_ones() {
    let world = World::new();
    let done = AtomicU64::new(0);
    let (finished, wait_finished) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // Stops when the large requests are through.
                while done.load(Ordering::SeqCst) == 0 {
                    world.interpreter.python_thread(|| churn(&world, &|| world.allocate().unwrap(), 4));
                }
            });
        }
        let (world, done) = (&world, &done);
        scope.spawn(move || {
            let large = || allocate(&world.allocator, 8 * BLOCK).unwrap();
            let longest = world.interpreter.python_thread(|| churn(world, &large, 50));
            done.store(1, Ordering::SeqCst);
            finished.send(longest).unwrap();
        });
        let longest = wait(&wait_finished);
        assert!(longest < Duration::from_secs(5), "{longest:?}");
    });
    assert_eq!(world.pressure().failed, 0);
}

#[test]
fn a_plain_free_goes_to_the_request_that_registered() {
    let world = World::new();
    // One request has found out that a collection frees nothing; the rest come later.
    let mut live = world.fill();
    thread::scope(|scope| {
        let request = || world.interpreter.python_thread(|| world.allocate()).unwrap();
        // The first collection is endless in objects, so the request registers and collects again.
        world.interpreter.endless_objects.store(1, Ordering::SeqCst);
        let second_collection = world.interpreter.pause_in_finalizer_of(2);
        let first = scope.spawn(request);
        wait(&second_collection.entered);
        let waits_before = load(&world.interpreter.detached_waits);
        let second = scope.spawn(request);
        world.interpreter.wait_for_detached(waits_before + 1);
        // A plain free of this thread serves the registered one although others look for memory.
        live.truncate(BLOCKS - 1);
        assert_eq!(world.allocator.statistics().unwrap().free_bytes, 0, "granted");
        live.truncate(BLOCKS - 2);
        assert_eq!(world.allocator.statistics().unwrap().free_bytes, BLOCK, "the other has not registered");
        second_collection.go_on.send(()).unwrap();
        drop((first.join().unwrap(), second.join().unwrap()));
    });
    drop(live);
    assert_eq!(world.pressure().failed, 0);
}
