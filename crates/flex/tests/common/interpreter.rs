//! A fake interpreter: a mutex for the GIL, thread tokens, and garbage in generations whose collection drops device
//! memory on the collecting thread.
//!
//! Like CPython it runs one collection at a time (a second one returns at once and did not run), and it releases
//! the GIL in the middle of a collection when a finalizer blocks.

// Each test target uses a part of it.
#![allow(dead_code, unreachable_pub)]

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, mpsc};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use flex::gate::{Collected, Entry, FailedRequest, Generation, Reclaimer, ThreadToken};
use flex::pressure::collecting::{self, Gaps, GateCollection};
use flex::pressure::{Hints, SkipReason};
use flex::rank::assert_unlocked;
use flex::{CompositeAddress, Unlocked};

thread_local! {
    static TOKEN: Cell<usize> = const { Cell::new(0) };
    static ATTACHED: Cell<bool> = const { Cell::new(false) };
}

/// What a collection does besides dropping garbage.
type Finalizer = Box<dyn FnMut() + Send>;

/// A collection that stands still in a finalizer.
pub struct PausedFinalizer {
    pub entered: mpsc::Receiver<()>,
    pub go_on: mpsc::Sender<()>,
}

#[derive(Default)]
pub struct FakeInterpreter {
    gil: Mutex<Option<ThreadId>>,
    gil_released: Condvar,
    /// Garbage by layer: a full collection takes the front one. Young garbage is its own.
    young: Mutex<Vec<CompositeAddress>>,
    old: Mutex<VecDeque<Vec<CompositeAddress>>>,
    /// Objects that a full collection finds although no garbage of ours is among them.
    pub endless_objects: AtomicU64,
    collecting: AtomicBool,
    /// With the number of collections after which each runs.
    finalizers: Mutex<Vec<(usize, Finalizer)>>,
    next_token: AtomicUsize,
    stops: AtomicU64,
    /// How often the observer was found removed.
    pub gaps: AtomicU64,
    pub alone: AtomicBool,
    pub finalizing: AtomicBool,
    pub disabled: AtomicBool,
    pub other_interpreter: AtomicBool,
    pub young_is_cheap: AtomicBool,
    /// Panics, by place; each once.
    pub panic_in_collect: AtomicBool,
    pub panic_in_attach: AtomicBool,
    pub panic_in_new_thread: AtomicBool,
    pub collector_threads: AtomicUsize,
    pub young_runs: AtomicU64,
    pub full_runs: AtomicU64,
    pub refused_runs: AtomicU64,
    pub hints_asked: AtomicU64,
    pub detached_waits: AtomicU64,
    /// Threads that have detached to wait for a collection.
    waiters: Mutex<HashSet<ThreadId>>,
    /// Threads that ran collections, in order.
    pub collected_on: Mutex<Vec<ThreadId>>,
    /// Waits for the GIL under way.
    waiting_for_gil: Mutex<usize>,
    gil_waits: Condvar,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl FakeInterpreter {
    /// One layer of garbage for full collections, freed after the layers that are there.
    pub fn add_garbage(&self, garbage: Vec<CompositeAddress>) {
        locked(&self.old).push_back(garbage);
    }

    /// Adds to the garbage that the next full collection finds.
    pub fn add_to_last_layer(&self, garbage: CompositeAddress) {
        let mut old = locked(&self.old);
        match old.back_mut() {
            Some(layer) => layer.push(garbage),
            None => old.push_back(vec![garbage]),
        }
    }

    pub fn add_young_garbage(&self, garbage: Vec<CompositeAddress>) {
        locked(&self.young).extend(garbage);
    }

    /// Garbage that no collection has found.
    pub fn take_garbage(&self) -> Vec<CompositeAddress> {
        let old = std::mem::take(&mut *locked(&self.old)).into_iter().flatten();
        old.chain(std::mem::take(&mut *locked(&self.young))).collect()
    }

    /// Runs once, in the middle of the next collection, on its thread, with the GIL held.
    pub fn add_finalizer(&self, finalizer: impl FnMut() + Send + 'static) {
        locked(&self.finalizers).push((1, Box::new(finalizer)));
    }

    /// Makes the next collection stand still, detached, before it drops anything.
    pub fn pause_in_finalizer(&self) -> PausedFinalizer {
        self.pause_in_finalizer_of(1)
    }

    /// Makes the `nth` collection from now stand still.
    pub fn pause_in_finalizer_of(&self, nth: usize) -> PausedFinalizer {
        let (tell, entered) = mpsc::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        let pause = move || {
            tell.send(()).unwrap();
            // An error means that the test has gone.
            let _ = wait.recv();
        };
        locked(&self.finalizers).push((nth, Box::new(pause)));
        PausedFinalizer { entered, go_on }
    }

    /// Gives the calling thread a state and runs `body` attached.
    pub fn python_thread<R>(&self, body: impl FnOnce() -> R) -> R {
        self.ensure_state();
        self.acquire();
        let _release = Release(self);
        body()
    }

    /// Runs `body` detached, as PyTorch does around operators.
    pub fn allow_threads<R>(&self, body: impl FnOnce() -> R) -> R {
        self.release();
        let _acquire = Acquire(self);
        body()
    }

    /// Runs a collection that is not the gate's.
    pub fn user_collect(&self) -> u64 {
        self.run(Generation::Full, false).map_or(0, |found| found)
    }

    /// Waits until `count` threads wait for the GIL.
    pub fn wait_for_gil_waiters(&self, count: usize) {
        let waiting = locked(&self.waiting_for_gil);
        let patience = Duration::from_secs(40);
        let (waiting, _) = self.gil_waits.wait_timeout_while(waiting, patience, |now| *now < count).unwrap();
        assert!(*waiting >= count, "threads that wait for the GIL");
    }

    /// Waits until `count` collections were refused because another one was running.
    pub fn wait_for_refused(&self, count: u64) {
        let end = Instant::now() + Duration::from_secs(40);
        while self.refused_runs.load(Ordering::SeqCst) < count {
            assert!(Instant::now() < end, "a refused collection");
            thread::yield_now();
        }
    }

    /// Waits until attached requests have detached so often: each is about to wait for a collection that it knows.
    pub fn wait_for_detached(&self, count: u64) {
        let end = Instant::now() + Duration::from_secs(40);
        while self.detached_waits.load(Ordering::SeqCst) < count {
            assert!(Instant::now() < end, "a request that waits detached");
            thread::yield_now();
        }
    }

    /// Waits until so many threads have detached to wait.
    pub fn wait_for_waiting_threads(&self, count: usize) {
        let end = Instant::now() + Duration::from_secs(40);
        while locked(&self.waiters).len() < count {
            assert!(Instant::now() < end, "threads that wait detached");
            thread::yield_now();
        }
    }

    pub fn runs(&self) -> (u64, u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        (load(&self.young_runs), load(&self.full_runs), load(&self.refused_runs))
    }

    fn ensure_state(&self) {
        if TOKEN.get() == 0 {
            TOKEN.set(self.next_token.fetch_add(1, Ordering::SeqCst) + 1);
        }
    }

    fn acquire(&self) {
        assert_unlocked("attach");
        assert!(!ATTACHED.get(), "attached already");
        let mut owner = locked(&self.gil);
        if owner.is_some() {
            *locked(&self.waiting_for_gil) += 1;
            self.gil_waits.notify_all();
            owner = self.gil_released.wait_while(owner, |owner| owner.is_some()).unwrap();
            *locked(&self.waiting_for_gil) -= 1;
        }
        *owner = Some(thread::current().id());
        ATTACHED.set(true);
    }

    fn release(&self) {
        assert_unlocked("detach");
        assert!(ATTACHED.replace(false), "not attached");
        *locked(&self.gil) = None;
        self.gil_released.notify_one();
    }

    /// One collection, unless another one is running.
    fn run(&self, generation: Generation, for_gate: bool) -> Option<u64> {
        assert!(ATTACHED.get(), "collecting needs the GIL");
        if self.collecting.swap(true, Ordering::SeqCst) {
            self.refused_runs.fetch_add(1, Ordering::SeqCst);
            return None;
        }
        let _running = Running { interpreter: self, for_gate };
        if !for_gate {
            collecting::begin_foreign(self.gaps());
        }
        let counter = if generation == Generation::Full { &self.full_runs } else { &self.young_runs };
        counter.fetch_add(1, Ordering::SeqCst);
        locked(&self.collected_on).push(thread::current().id());
        if self.panic_in_collect.swap(false, Ordering::SeqCst) {
            panic!("the collector panics");
        }
        let mut garbage = std::mem::take(&mut *locked(&self.young));
        if generation == Generation::Full {
            garbage.extend(locked(&self.old).pop_front().into_iter().flatten());
        }
        let found = garbage.len() as u64 + self.take_endless(generation);
        // Finalizers and the deleters of tensors let other threads run.
        self.allow_threads(|| {
            self.due_finalizers().into_iter().for_each(|mut finalizer| finalizer());
            drop(garbage);
        });
        Some(found)
    }

    fn due_finalizers(&self) -> Vec<Finalizer> {
        let mut finalizers = locked(&self.finalizers);
        finalizers.iter_mut().for_each(|(countdown, _)| *countdown -= 1);
        finalizers.extract_if(.., |(countdown, _)| *countdown == 0).map(|(_, finalizer)| finalizer).collect()
    }

    fn take_endless(&self, generation: Generation) -> u64 {
        let take = |left: u64| left.checked_sub(1);
        let full = generation == Generation::Full;
        let taken =
            full && self.endless_objects.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok();
        u64::from(taken)
    }
}

struct Running<'a> {
    interpreter: &'a FakeInterpreter,
    for_gate: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.for_gate {
            collecting::end_foreign();
        }
        self.interpreter.stops.fetch_add(1, Ordering::SeqCst);
        self.interpreter.collecting.store(false, Ordering::SeqCst);
    }
}

struct Release<'a>(&'a FakeInterpreter);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

struct Acquire<'a>(&'a FakeInterpreter);

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        self.0.acquire();
    }
}

impl Reclaimer for FakeInterpreter {
    fn entry(&self) -> Entry {
        Entry {
            attached: ATTACHED.get(),
            thread: ThreadToken(TOKEN.get()),
            thread_ident: TOKEN.get() as u64,
            in_collection: collecting::foreign(),
            unavailable: if self.finalizing.load(Ordering::SeqCst) {
                Some(SkipReason::Finalizing)
            } else if self.other_interpreter.load(Ordering::SeqCst) {
                Some(SkipReason::Interpreter)
            } else {
                None
            },
        }
    }

    fn collect(&self, _proof: &Unlocked<'_>, generation: Generation) -> Collected {
        let began = Instant::now();
        let mark = GateCollection::begin();
        let found = self.run(generation, true);
        drop(mark);
        Collected {
            ran: found.is_some(),
            interrupted: false,
            objects: found.unwrap_or(0),
            elapsed: began.elapsed(),
        }
    }

    fn collector_enabled(&self, _proof: &Unlocked<'_>) -> bool {
        !self.disabled.load(Ordering::SeqCst)
    }

    fn hints(&self, _proof: &Unlocked<'_>, _failed: &FailedRequest) -> Hints {
        assert!(ATTACHED.get());
        self.hints_asked.fetch_add(1, Ordering::SeqCst);
        Hints { frozen_objects: true, ..Hints::default() }
    }

    fn detached(&self, _proof: &Unlocked<'_>, body: &mut dyn FnMut()) {
        locked(&self.waiters).insert(thread::current().id());
        self.detached_waits.fetch_add(1, Ordering::SeqCst);
        self.allow_threads(body);
    }

    fn attached(&self, _proof: &Unlocked<'_>, thread: ThreadToken, body: &mut dyn FnMut()) {
        assert_eq!(thread, ThreadToken(TOKEN.get()), "a thread's own state");
        if self.panic_in_attach.swap(false, Ordering::SeqCst) {
            panic!("attaching panics");
        }
        self.acquire();
        let _release = Release(self);
        body();
    }

    fn new_thread(&self, _proof: &Unlocked<'_>) -> ThreadToken {
        if self.panic_in_new_thread.swap(false, Ordering::SeqCst) {
            panic!("no thread state");
        }
        self.collector_threads.fetch_add(1, Ordering::SeqCst);
        self.ensure_state();
        ThreadToken(TOKEN.get())
    }

    fn is_alone(
        &self,
        _proof: &Unlocked<'_>,
        requester: &Entry,
        ignore: &dyn Fn(ThreadToken) -> bool,
    ) -> bool {
        assert!(ATTACHED.get() && ignore(ThreadToken(TOKEN.get())));
        requester.thread.0 != 0 && self.alone.load(Ordering::SeqCst)
    }

    fn has_other_threads(&self, _proof: &Unlocked<'_>, ignore: &dyn Fn(ThreadToken) -> bool) -> bool {
        !(0..self.next_token.load(Ordering::SeqCst))
            .map(|index| ThreadToken(index + 1))
            .all(|thread| thread.0 == TOKEN.get() || ignore(thread))
    }

    fn is_finalizing(&self) -> bool {
        self.finalizing.load(Ordering::SeqCst)
    }

    fn young_is_cheap(&self) -> bool {
        self.young_is_cheap.load(Ordering::SeqCst)
    }

    fn gaps(&self) -> Gaps {
        Gaps(self.gaps.load(Ordering::SeqCst))
    }

    fn collections_stopped(&self) -> u64 {
        self.stops.load(Ordering::SeqCst)
    }

    fn hold_at_exit(&self, _entry: &Entry, _deadline: Instant) {}

    fn end_forked_child(&self) -> ! {
        // SAFETY: ends the process without destructors, which would wait for threads that are gone.
        unsafe { libc::_exit(0) }
    }
}
