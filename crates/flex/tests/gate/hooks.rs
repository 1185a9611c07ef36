//! User hooks: one run at a time, what they allocate runs no hooks, and requests that wait for a run search after it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use flex::Unlocked;
use flex::gate::{CollectPolicy, HookEvent, HookOutcome, PolicySettings, PressureHook};
use flex::pressure::SkipReason;

use crate::gate_world::*;
use crate::support::*;

struct Hook<F>(F);

impl<F: Fn() + Send + Sync> PressureHook for Hook<F> {
    fn run(&self, _proof: &Unlocked<'_>, _event: &HookEvent) -> HookOutcome {
        (self.0)();
        HookOutcome::Done
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

/// A second device of the gate, full.
fn another_device(world: &World) -> (flex::FlexAllocator, Vec<flex::CompositeAddress>) {
    let device = allocator(BLOCKS as u64 * BLOCK);
    device.set_memory_pressure_callback(Some(world.gate.ladder())).unwrap();
    let live = allocate_many(&device, BLOCKS, BLOCK);
    (device, live)
}

/// Registers a hook that stands still, detached, each time it is called.
fn register_slow_hook(world: &World) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (entered, wait_entered) = mpsc::channel();
    let (go_on, wait_to_go_on) = mpsc::channel::<()>();
    let wait_to_go_on = Mutex::new(wait_to_go_on);
    let interpreter = world.interpreter.clone();
    register(world, move || {
        interpreter.allow_threads(|| {
            let _ = entered.send(());
            let _ = wait_to_go_on.lock().unwrap().recv();
        });
    });
    (wait_entered, go_on)
}

fn until(what: impl Fn() -> bool) {
    let end = std::time::Instant::now() + patience();
    while !what() {
        assert!(std::time::Instant::now() < end, "another thread gets there");
        thread::yield_now();
    }
}

#[test]
fn who_left_a_hook_behind_does_not_end_the_run_of_another() {
    let world = World::with_timeout(Duration::from_millis(300));
    let (other, live_there) = another_device(&world);
    let live = world.fill();
    let (entered, go_on) = register_slow_hook(&world);
    thread::scope(|scope| {
        let first = scope.spawn(|| drop(world.allocate()));
        wait(&entered);
        // The first gives up, but does not get its mutex back before its hook has returned.
        let ((held, is_held), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
        let memory = &world.allocator;
        let hold = move || {
            held.send(()).unwrap();
            let _ = released.recv();
        };
        let holder = scope.spawn(move || memory.while_locked(hold).unwrap());
        wait(&is_held);
        until(|| world.gate.census().waiting == 0);
        go_on.send(()).unwrap();
        until(|| world.gate.census().hook_runs == 0);
        world.gate.set_policy(PolicySettings { timeout: Duration::from_secs(30), ..world.gate.policy() });
        let second = scope.spawn(|| drop(allocate(&other, BLOCK)));
        wait(&entered);
        release.send(()).unwrap();
        holder.join().unwrap();
        first.join().unwrap();
        assert_eq!(world.gate.census().hook_runs, 1, "the second one's run goes on");
        go_on.send(()).unwrap();
        second.join().unwrap();
    });
    assert_eq!(world.gate.census().hook_runs, 0);
    other.set_memory_pressure_callback(None).unwrap();
    drop((live, live_there));
}

#[test]
fn a_request_does_not_wait_behind_the_hook_of_another() {
    let world = World::with(PolicySettings {
        timeout: Duration::from_secs(30),
        collect: CollectPolicy::Off,
        ..PolicySettings::default()
    });
    let (other, live_there) = another_device(&world);
    world.interpreter.add_garbage(live_there);
    let live = world.fill();
    let (entered, go_on) = register_slow_hook(&world);
    thread::scope(|scope| {
        let ((held, is_held), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
        let interpreter = &world.interpreter;
        let hold = move || {
            held.send(()).unwrap();
            let _ = released.recv();
        };
        let holder = scope.spawn(move || interpreter.python_thread(hold));
        wait(&is_held);
        // The one collector thread waits for the interpreter, to call a hook; a collection is queued behind it.
        let first = scope.spawn(|| drop(world.allocate()));
        world.interpreter.wait_for_gil_waiters(1);
        // Its deadline comes first: the first one asks for hints at its own, which starts a collector thread.
        world.gate.set_policy(PolicySettings {
            timeout: Duration::from_secs(15),
            collect: CollectPolicy::Always,
            ..world.gate.policy()
        });
        let second = scope.spawn(|| drop(allocate(&other, BLOCK).unwrap()));
        until(|| world.gate.census().queued_jobs == 1);
        release.send(()).unwrap();
        holder.join().unwrap();
        wait(&entered);
        second.join().unwrap();
        go_on.send(()).unwrap();
        first.join().unwrap();
    });
    assert_eq!(world.collector_threads(), 2);
    other.set_memory_pressure_callback(None).unwrap();
    drop(live);
}

/// Registers itself again each time it is called.
struct EndlessHook {
    gate: Arc<flex::gate::Gate>,
    calls: Arc<AtomicU64>,
}

impl PressureHook for EndlessHook {
    fn run(&self, _proof: &Unlocked<'_>, _event: &HookEvent) -> HookOutcome {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let again = EndlessHook { gate: Arc::clone(&self.gate), calls: Arc::clone(&self.calls) };
        assert!(self.gate.register_hook(0, Arc::new(again)).is_ok());
        HookOutcome::Done
    }
}

#[test]
fn hooks_registered_by_hooks_are_of_the_next_run() {
    let world = World::new();
    let live = world.fill();
    let calls = Arc::new(AtomicU64::new(0));
    let first = EndlessHook { gate: Arc::clone(&world.gate), calls: Arc::clone(&calls) };
    let id = world.gate.register_hook(0, Arc::new(first)).map_err(|_| "forked").unwrap();
    for expected in [1, 3, 7] {
        expect_out_of_memory(world.interpreter.python_thread(|| world.allocate()));
        assert_eq!(load(&calls), expected, "each run calls those that were there before it");
    }
    for raw in 0..=id.to_raw() + 7 {
        drop(world.gate.remove_hook(flex::gate::HookId::from_raw(raw)));
    }
    drop(live);
}

#[test]
fn nobody_waits_for_a_hook_past_the_deadline_of_its_request() {
    let world = World::with_timeout(Duration::from_millis(100));
    let live = world.fill();
    let (entered, go_on) = register_slow_hook(&world);
    thread::scope(|scope| {
        // Its hook runs inline, so nobody gives it up.
        let first = scope.spawn(|| drop(world.interpreter.python_thread(|| world.allocate())));
        wait(&entered);
        let patient = PolicySettings { timeout: Duration::from_secs(50), ..world.gate.policy() };
        world.gate.set_policy(patient);
        let began = std::time::Instant::now();
        expect_out_of_memory(world.interpreter.python_thread(|| world.allocate()));
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        go_on.send(()).unwrap();
        first.join().unwrap();
    });
    drop(live);
}
