//! shuttle: the whole ladder, allocator included, in random and in PCT schedules, without magazines and with them.
//!
//! `FLEX_SCHEDULES` sets how many schedules of each kind a test runs, `FLEX_SEED` which: those of seed 0 unless it is
//! set. PCT is not fair: once in some ten thousand of its schedules a thread that polls keeps the others from running
//! for ever, and the checker reports too many steps. Random schedules are fair: one that does not end is a fault.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

use super::*;
use crate::model_world::{BLOCK, ModelInterpreter, allocate, allocator, allocator_with_magazines, skipped};
use crate::pressure::{SkipReason, collecting};
use crate::sync::model::{let_time_pass, set_step};
use crate::sync::thread;
use crate::{CompositeAddress, FlexAllocator, FlexError};

/// How many preemptions PCT places in each schedule.
const PCT_DEPTH: usize = 4;

/// Every poll of a foreign collection expires at once; deadlines hold until a test lets time pass.
const STEP: Duration = Duration::from_millis(50);

thread_local! {
    /// Whether the worlds of the schedules that run now have magazines. A runner stays on its test's thread.
    static MAGAZINES: Cell<bool> = const { Cell::new(false) };
}

fn check(schedule: impl Fn() + Send + Sync + 'static) {
    let number = |name: &str, otherwise: u64| {
        let given = std::env::var(name).ok();
        given.map_or(otherwise, |text| {
            text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number"))
        })
    };
    let (count, seed) = (number("FLEX_SCHEDULES", 1_000) as usize, number("FLEX_SEED", 0));
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    config.silence_warnings = true;
    let schedule = Arc::new(schedule);
    for magazines in [false, true] {
        MAGAZINES.set(magazines);
        let (first, again) = (Arc::clone(&schedule), Arc::clone(&schedule));
        Runner::new(RandomScheduler::new_from_seed(seed, count), config.clone())
            .run(move || thread::to_its_end(&*first));
        Runner::new(PctScheduler::new_from_seed(seed, PCT_DEPTH, count), config.clone())
            .run(move || thread::to_its_end(&*again));
    }
}

struct World {
    allocator: FlexAllocator,
    gate: Arc<Gate>,
    interpreter: Arc<ModelInterpreter>,
    served: AtomicU64,
}

impl World {
    fn new(blocks: u64, timeout: Duration) -> Arc<World> {
        set_step(STEP);
        let interpreter = Arc::new(ModelInterpreter::default());
        let settings = PolicySettings { timeout, ..PolicySettings::default() };
        let gate = Gate::new(interpreter.clone(), settings);
        interpreter.observe(Some(gate.clone()));
        let allocator = if MAGAZINES.get() { allocator_with_magazines(blocks) } else { allocator(blocks) };
        allocator.set_memory_pressure_callback(Some(gate.ladder())).unwrap();
        Arc::new(World { allocator, gate, interpreter, served: AtomicU64::new(0) })
    }

    fn patient(blocks: u64) -> Arc<World> {
        World::new(blocks, Duration::from_secs(3600))
    }

    fn spawn<R: Send + 'static>(
        self: &Arc<Self>,
        body: impl FnOnce(&World) -> R + Send + 'static,
    ) -> thread::JoinHandle<R> {
        let world = Arc::clone(self);
        thread::spawn(move || body(&world))
    }

    fn allocate(&self) -> Result<CompositeAddress, FlexError> {
        let block = allocate(&self.allocator);
        self.served.fetch_add(u64::from(block.is_ok()), Ordering::SeqCst);
        block
    }

    /// Allocates and throws away, beyond exhaustion.
    fn churn(&self, rounds: usize) {
        for _ in 0..rounds {
            let block = self.allocate().expect("enough of the device is garbage");
            self.interpreter.add_to_last_layer(block);
        }
    }

    fn fill_with_garbage(&self) {
        let free = self.allocator.statistics().unwrap().free_bytes / BLOCK;
        // In layers, as garbage comes.
        for _ in 0..free {
            self.interpreter.add_garbage(vec![allocate(&self.allocator).unwrap()]);
        }
    }

    fn expire(&self) {
        let_time_pass();
        let _state = self.gate.lock().unwrap();
        self.gate.changed.notify_all();
    }

    /// Nothing is left of anything, and every event has ended one way.
    fn end(&self) {
        self.gate.close();
        thread::join_spawned();
        {
            let state = self.gate.lock().unwrap();
            assert!(state.flight.is_none() && state.jobs.is_empty());
            let collectors = [
                state.starting_collectors,
                state.idle_collectors,
                state.attaching_collectors,
                state.returning_collectors,
            ];
            assert_eq!(collectors, [0; 4], "collectors that start, idle, attach, return");
        }
        self.interpreter.observe(None);
        drop(self.interpreter.take_garbage());
        drop(self.allocator.set_memory_pressure_callback(None).unwrap());
        self.allocator.validate().unwrap();
        assert_eq!(self.allocator.statistics().unwrap().allocated_bytes.current, 0);
        let pressure = self.allocator.pressure_statistics();
        assert_eq!(pressure.events, pressure.rescued + pressure.failed, "{pressure:?}");
        assert!(pressure.coalesced <= pressure.rescued, "{pressure:?}");
    }

    fn assert_all_rescued(&self) {
        let pressure = self.allocator.pressure_statistics();
        assert!(pressure.events > 0, "it was under pressure");
        assert_eq!((pressure.failed, skipped(&self.allocator)), (0, vec![]), "{pressure:?}");
    }
}

/// Four requesters, attached, detached by PyTorch and native, of which each throws away what it gets.
#[test]
fn everybody_is_rescued() {
    check(|| {
        let world = World::patient(6);
        world.fill_with_garbage();
        let python = |world: &World| world.interpreter.python_thread(|| world.churn(3));
        let operator = |world: &World| {
            world.interpreter.python_thread(|| world.interpreter.allow_threads(|| world.churn(3)));
        };
        let native = |world: &World| world.churn(3);
        let threads = [world.spawn(python), world.spawn(python), world.spawn(operator), world.spawn(native)];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        world.assert_all_rescued();
        assert_eq!(world.served.load(Ordering::SeqCst), 12);
        assert_eq!(world.interpreter.refused.load(Ordering::SeqCst), 0, "one collection at a time");
        world.end();
    });
}

/// The program collects by itself meanwhile, and somebody frees live blocks.
#[test]
fn foreign_collections_and_frees_make_nobody_fail() {
    check(|| {
        let world = World::patient(6);
        let live = [allocate(&world.allocator).unwrap(), allocate(&world.allocator).unwrap()];
        world.fill_with_garbage();
        let program = |world: &World| {
            (0..2).for_each(|_| world.interpreter.python_thread(|| world.interpreter.user_collect()));
        };
        let python = |world: &World| world.interpreter.python_thread(|| world.churn(2));
        let native = |world: &World| world.churn(2);
        let frees = move |_: &World| live.into_iter().for_each(drop);
        let threads = [world.spawn(program), world.spawn(python), world.spawn(native), world.spawn(frees)];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let pressure = world.allocator.pressure_statistics();
        assert_eq!((pressure.failed, skipped(&world.allocator)), (0, vec![]), "{pressure:?}");
        world.end();
    });
}

/// The one block is live: everybody fails, after a whole collection that began after the request did.
#[test]
fn who_fails_has_seen_a_whole_collection() {
    check(|| {
        let world = World::patient(1);
        let live = allocate(&world.allocator).unwrap();
        let request = |world: &World| {
            let before = world.interpreter.step();
            match world.allocate() {
                Err(FlexError::OutOfMemory(report)) => assert!(report.reclaim.full_collections >= 1),
                other => panic!("expected out of memory, got {other:?}"),
            }
            let began = world.interpreter.began.load(Ordering::SeqCst);
            assert!(began > before, "the collection it counted began too early");
        };
        let python = move |world: &World| world.interpreter.python_thread(|| request(world));
        let threads = [world.spawn(request), world.spawn(python), world.spawn(python)];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(world.allocator.pressure_statistics().failed, 3);
        drop(live);
        world.end();
    });
}

/// Deadlines pass at any time: requests fail for that reason or are served, and nothing hangs or leaks.
#[test]
fn deadlines_may_pass_at_any_time() {
    check(|| {
        let world = World::patient(4);
        world.fill_with_garbage();
        let request = |world: &World| drop(world.allocate());
        let python = |world: &World| world.interpreter.python_thread(|| drop(world.allocate()));
        let program = |world: &World| world.interpreter.python_thread(|| world.interpreter.user_collect());
        let threads = [
            world.spawn(request),
            world.spawn(request),
            world.spawn(python),
            world.spawn(program),
            world.spawn(World::expire),
        ];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let reasons = skipped(&world.allocator);
        assert!(reasons.iter().all(|(reason, _)| *reason == SkipReason::Timeout), "{reasons:?}");
        world.end();
    });
}

/// The gate closes at any time.
#[test]
fn the_gate_may_close_at_any_time() {
    check(|| {
        let world = World::patient(3);
        world.fill_with_garbage();
        let request = |world: &World| drop(world.allocate());
        let python = |world: &World| world.interpreter.python_thread(|| drop(world.allocate()));
        let close = |world: &World| world.gate.close();
        let threads = [world.spawn(request), world.spawn(python), world.spawn(close)];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let reasons = skipped(&world.allocator);
        assert!(reasons.iter().all(|(reason, _)| *reason == SkipReason::Finalizing), "{reasons:?}");
        world.end();
    });
}

/// A finalizer allocates on the exhausted device: it fails at once, and its collection goes on.
#[test]
fn a_finalizer_that_allocates_does_not_wait_for_itself() {
    check(|| {
        let world = World::patient(2);
        world.fill_with_garbage();
        let nested = world.allocator.clone();
        let finalizer = move || {
            assert!(collecting::kind().is_some());
            drop(allocate(&nested));
        };
        world.interpreter.finalizers.lock().unwrap().push(Box::new(finalizer));
        let request = |world: &World| world.churn(1);
        let python = |world: &World| world.interpreter.python_thread(|| world.churn(1));
        let threads = [world.spawn(request), world.spawn(python)];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let reasons = skipped(&world.allocator);
        assert!(reasons.iter().all(|(reason, _)| *reason == SkipReason::Reentrant), "{reasons:?}");
        world.end();
    });
}
