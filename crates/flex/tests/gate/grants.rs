//! A registered request that sleeps at the gate and is granted memory: it does not sleep on.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use flex::Unlocked;
use flex::gate::{HookEvent, HookOutcome, PressureHook};

use crate::gate_world::*;
use crate::interpreter::FakeInterpreter;
use crate::support::*;

#[test]
fn a_free_ends_the_wait_for_ones_own_collection_on_the_collector_thread() {
    let world = World::new();
    let mut live = world.fill();
    // A request that finds garbage without memory goes on, registered, to a second collection.
    world.interpreter.endless_objects.store(1, Ordering::SeqCst);
    let finalizer = world.interpreter.pause_in_finalizer_of(2);
    thread::scope(|scope| {
        let request = scope.spawn(|| world.allocate().unwrap());
        wait(&finalizer.entered);
        live.pop();
        drop(request.join().unwrap());
        assert_eq!((world.events(), world.collections()), ((1, 1, 0), (0, 1)), "the second goes on");
        finalizer.go_on.send(()).unwrap();
    });
    world.wait_for_collections(2);
    assert_eq!(world.pressure().collectors_abandoned, 0, "nobody ran out of time");
    // The collector thread is there for the next request.
    live.extend(world.fill());
    world.interpreter.add_garbage(live);
    drop(world.allocate().unwrap());
    assert_eq!((world.events(), world.collections(), world.collector_threads()), ((2, 2, 0), (0, 3), 1));
}

/// A hook that waits for its test, detached.
struct SlowHook {
    interpreter: Arc<FakeInterpreter>,
    entered: mpsc::Sender<()>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl PressureHook for SlowHook {
    fn run(&self, _proof: &Unlocked<'_>, _event: &HookEvent) -> HookOutcome {
        let _ = self.entered.send(());
        self.interpreter.allow_threads(|| self.go_on.lock().unwrap().recv().unwrap());
        HookOutcome::Done
    }
}

#[test]
fn a_free_ends_the_wait_for_the_hooks_of_others_but_not_for_ones_own() {
    let world = World::new();
    let mut live = world.fill();
    let ((entered, wait_entered), (go_on, wait_to_go_on)) = (mpsc::channel(), mpsc::channel());
    let hook = SlowHook { interpreter: world.interpreter.clone(), entered, go_on: Mutex::new(wait_to_go_on) };
    let id = world.gate.register_hook(0, Arc::new(hook)).map_err(|_| "forked").unwrap();
    thread::scope(|scope| {
        // Its hook runs on the collector thread.
        let first = scope.spawn(|| world.allocate().unwrap());
        wait(&wait_entered);
        let second = scope.spawn(|| world.interpreter.python_thread(|| world.allocate()).unwrap());
        world.interpreter.wait_for_waiting_threads(1);
        // The first is the oldest, and is served first; but its hook may be using what its thread uses.
        live.truncate(live.len() - 2);
        drop(second.join().unwrap());
        assert!(!first.is_finished());
        assert_eq!((world.events(), world.pressure().hooks_run), ((2, 1, 0), 1));
        go_on.send(()).unwrap();
        drop(first.join().unwrap());
    });
    assert_eq!((world.events(), world.pressure().hooks_run), ((2, 2, 0), 1));
    drop(world.gate.remove_hook(id));
    drop(live);
}
