//! One request: where its collections run, which, and how many.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use flex::gate::{CollectPolicy, PolicySettings};
use flex::pressure::SkipReason;

use crate::gate_world::*;
use crate::support::*;

#[test]
fn an_attached_thread_collects_inline() {
    let world = World::new();
    world.fill_with_garbage();
    let rescued = world.interpreter.python_thread(|| world.allocate()).unwrap();
    assert_eq!(*world.interpreter.collected_on.lock().unwrap(), [thread::current().id()]);
    assert_eq!((world.events(), world.collections(), world.collector_threads()), ((1, 1, 0), (0, 1), 0));
    let pressure = world.pressure();
    assert_eq!((pressure.coalesced, pressure.collectors_abandoned), (0, 0));
    assert_eq!(pressure.reclaimed_bytes, BLOCKS as u64 * BLOCK);
    assert_eq!(pressure.collection_freed_bytes, pressure.reclaimed_bytes);
    assert!(pressure.collection_max_ns > 0 && pressure.collection_max_ns <= pressure.collection_time_ns);
    assert_eq!(pressure.request_max_collections, 1);
    assert!(pressure.request_max_ns >= pressure.collection_max_ns);
    drop(rescued);
}

#[test]
fn a_detached_thread_has_the_collector_thread_collect() {
    let world = World::new();
    for round in 1..=3 {
        world.fill_with_garbage();
        let rescued =
            world.interpreter.python_thread(|| world.interpreter.allow_threads(|| world.allocate())).unwrap();
        drop(rescued);
        assert_eq!((world.events(), world.collections()), ((round, round, 0), (0, round)));
    }
    assert_eq!(world.collector_threads(), 1, "it is used again");
    let collected_on = world.interpreter.collected_on.lock().unwrap().clone();
    assert!(collected_on.iter().all(|thread| *thread != thread::current().id()));
}

#[test]
fn a_native_thread_needs_no_thread_state() {
    let world = World::new();
    world.interpreter.alone.store(true, Ordering::SeqCst);
    world.fill_with_garbage();
    drop(world.allocate().unwrap());
    assert_eq!((world.collections(), world.collector_threads()), ((0, 1), 1));
    assert_ne!(*world.interpreter.collected_on.lock().unwrap(), [thread::current().id()]);
}

#[test]
fn alone_a_detached_thread_collects_by_itself() {
    let world = World::new();
    world.interpreter.alone.store(true, Ordering::SeqCst);
    world.fill_with_garbage();
    let rescued =
        world.interpreter.python_thread(|| world.interpreter.allow_threads(|| world.allocate())).unwrap();
    assert_eq!(*world.interpreter.collected_on.lock().unwrap(), [thread::current().id()]);
    assert_eq!((world.events(), world.collections(), world.collector_threads()), ((1, 1, 0), (0, 1), 1));
    drop(rescued);
}

#[test]
fn young_generations_come_first() {
    let world = World::new();
    world.interpreter.young_is_cheap.store(true, Ordering::SeqCst);
    world.interpreter.add_young_garbage(vec![world.allocate().unwrap()]);
    world.fill_with_garbage();
    let first = world.interpreter.python_thread(|| world.allocate()).unwrap();
    assert_eq!(world.collections(), (1, 0));
    let second = world.interpreter.python_thread(|| world.allocate()).unwrap();
    assert_eq!(world.collections(), (2, 1), "it was not enough");
    drop((first, second));
}

#[test]
fn without_escalation_the_first_collection_is_full() {
    let world = World::with(PolicySettings { escalate: false, ..PolicySettings::default() });
    world.interpreter.young_is_cheap.store(true, Ordering::SeqCst);
    world.fill_with_garbage();
    drop(world.interpreter.python_thread(|| world.allocate()).unwrap());
    assert_eq!(world.collections(), (0, 1));
}

#[test]
fn garbage_that_comes_in_waves_is_followed() {
    let world = World::new();
    let last = world.fill();
    // Each layer becomes garbage when the one before is collected; only the fourth frees memory.
    for _ in 0..3 {
        world.interpreter.add_garbage(Vec::new());
    }
    world.interpreter.add_garbage(last);
    world.interpreter.endless_objects.store(3, Ordering::SeqCst);
    drop(world.interpreter.python_thread(|| world.allocate()).unwrap());
    assert_eq!((world.events(), world.collections()), ((1, 1, 0), (0, 4)));
}

#[test]
fn waves_that_free_too_little_go_on_as_long_as_they_free_something() {
    let world = World::new();
    for block in world.fill() {
        world.interpreter.add_garbage(vec![block]);
    }
    let all = world.interpreter.python_thread(|| allocate(&world.allocator, BLOCKS as u64 * BLOCK)).unwrap();
    assert_eq!(world.collections(), (0, BLOCKS as u64));
    drop(all);
}

#[test]
fn four_dry_collections_in_a_row_are_enough() {
    let world = World::new();
    let live = world.fill();
    world.interpreter.endless_objects.store(u64::MAX, Ordering::SeqCst);
    let report = expect_out_of_memory(world.interpreter.python_thread(|| world.allocate()));
    assert_eq!((world.collections(), world.events()), ((0, 4), (1, 0, 1)));
    assert_eq!((report.reclaim.full_collections, report.reclaim.reclaimed_bytes), (4, 0));
    assert_eq!((report.reclaim.skipped, report.reclaim.timed_out), (None, false));
    drop(live);
}

#[test]
fn live_memory_costs_one_collection_and_the_report_says_so() {
    let world = World::new();
    let live = world.fill();
    let report = expect_out_of_memory(world.interpreter.python_thread(|| world.allocate()));
    assert_eq!((report.free_bytes, report.capacity_bytes), (0, BLOCKS as u64 * BLOCK));
    assert_eq!((report.reclaim.full_collections, report.reclaim.young_collections), (1, 0));
    assert!(report.reclaim.hints.frozen_objects, "the interpreter was asked");
    let detached = expect_out_of_memory(world.allocate());
    assert!(detached.reclaim.hints.frozen_objects, "also for a native thread");
    assert_eq!(load(&world.interpreter.hints_asked), 2);
    drop(live);
    drop(world.allocate().unwrap());
}

/// The first collection frees a block that a rival takes; `empty_layers` full ones later there is more.
fn rescued_despite_a_rival(world: &World, empty_layers: usize) {
    let mut blocks = world.fill();
    let mut freed = blocks.pop();
    (0..empty_layers).for_each(|_| world.interpreter.add_garbage(Vec::new()));
    world.interpreter.add_garbage(blocks);
    let (rival, (taken, take)) = (world.allocator.clone(), std::sync::mpsc::channel());
    world.interpreter.add_finalizer(move || {
        drop(freed.take());
        taken.send(allocate(&rival, BLOCK).unwrap()).unwrap();
    });
    drop(world.interpreter.python_thread(|| world.allocate()).unwrap());
    drop(take.recv().unwrap());
}

#[test]
fn memory_that_a_rival_took_is_worth_another_round() {
    let world = World::new();
    rescued_despite_a_rival(&world, 1);
    assert_eq!(world.collections(), (0, 2));
}

#[test]
fn also_when_it_was_the_young_collection_that_freed_it() {
    let world = World::new();
    world.interpreter.young_is_cheap.store(true, Ordering::SeqCst);
    rescued_despite_a_rival(&world, 1);
    assert_eq!(world.collections(), (1, 2));
}

#[test]
fn the_policy_decides() {
    let world = World::new();
    let live = world.fill();
    world.gate.set_policy(PolicySettings { collect: CollectPolicy::Off, ..PolicySettings::default() });
    let report = expect_out_of_memory(world.interpreter.python_thread(|| world.allocate()));
    assert_eq!(report.reclaim.skipped, Some(SkipReason::Policy));
    let settings = PolicySettings { collect: CollectPolicy::RespectDisable, ..PolicySettings::default() };
    world.gate.set_policy(settings);
    assert_eq!(world.gate.policy(), settings);
    world.interpreter.disabled.store(true, Ordering::SeqCst);
    let report = expect_out_of_memory(world.interpreter.python_thread(|| world.allocate()));
    assert_eq!(report.reclaim.skipped, Some(SkipReason::Disabled));
    assert_eq!(world.collections(), (0, 0));
    assert_eq!((world.skipped(SkipReason::Policy), world.skipped(SkipReason::Disabled)), (1, 1));
    world.interpreter.disabled.store(false, Ordering::SeqCst);
    world.interpreter.add_garbage(live);
    drop(world.interpreter.python_thread(|| world.allocate()).unwrap());
    assert_eq!(world.collections(), (0, 1));
}

#[test]
fn disabled_collection_is_no_obstacle_by_default() {
    let world = World::new();
    world.interpreter.disabled.store(true, Ordering::SeqCst);
    world.fill_with_garbage();
    drop(world.allocate().unwrap());
    assert_eq!(world.events(), (1, 1, 0));
}

#[test]
fn a_thread_of_another_interpreter_does_not_collect() {
    let world = World::new();
    let live = world.fill();
    world.interpreter.other_interpreter.store(true, Ordering::SeqCst);
    let report = expect_out_of_memory(world.allocate());
    assert_eq!(report.reclaim.skipped, Some(SkipReason::Interpreter));
    assert_eq!((world.skipped(SkipReason::Interpreter), world.collections()), (1, (0, 0)));
    assert_eq!((load(&world.interpreter.hints_asked), world.collector_threads()), (0, 0));
    drop(live);
}

#[test]
fn a_dying_interpreter_is_left_alone() {
    let world = World::new();
    let live = world.fill();
    world.interpreter.finalizing.store(true, Ordering::SeqCst);
    let report = expect_out_of_memory(world.allocate());
    assert_eq!(report.reclaim.skipped, Some(SkipReason::Finalizing));
    assert_eq!((world.skipped(SkipReason::Finalizing), world.collector_threads()), (1, 0));
    drop(live);
    drop(world.allocate().unwrap());
}

#[test]
fn no_timeout_is_too_long() {
    let world = World::with_timeout(Duration::MAX);
    world.fill_with_garbage();
    drop(world.allocate().unwrap());
    world.fill_with_garbage();
    drop(world.interpreter.python_thread(|| world.allocate()).unwrap());
    assert_eq!(world.events(), (2, 2, 0));
}

#[test]
fn a_request_that_no_collection_could_help_runs_none() {
    let world = World::new();
    let report = expect_out_of_memory(allocate(&world.allocator, BLOCKS as u64 * BLOCK + 1));
    assert!(!report.possible);
    assert_eq!((world.events(), world.collections()), ((0, 0, 0), (0, 0)));
}
