//! What the models and schedules run on: a device without memory, and an interpreter of the checker's own locks.

// Each checker uses a part.
#![allow(dead_code)]

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::addresses_only::AddressesOnly;
use crate::gate::{Collected, Entry, FailedRequest, Gate, Generation, Reclaimer, ThreadToken};
use crate::pressure::collecting::{self, Gaps, GateCollection};
use crate::pressure::{Hints, SkipReason};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::{
    ALIGNMENT_BYTES, AllocationDirective, AllocatorOptions, CompositeAddress, FlexAllocator, FlexError,
    Topology, Unlocked,
};

pub(crate) const BLOCK: u64 = ALIGNMENT_BYTES;

/// An allocator of so many blocks, in one region. Magazines have models of their own; the others would have too many
/// steps with them.
pub(crate) fn allocator(blocks: u64) -> FlexAllocator {
    allocator_with(blocks, false)
}

pub(crate) fn allocator_with_magazines(blocks: u64) -> FlexAllocator {
    allocator_with(blocks, true)
}

fn allocator_with(blocks: u64, magazines: bool) -> FlexAllocator {
    let topology = Topology::uniform(blocks * BLOCK).unwrap();
    let options = AllocatorOptions { magazines, ..AllocatorOptions::default() };
    FlexAllocator::new(Arc::new(AddressesOnly::default()), &topology, options).unwrap()
}

pub(crate) fn allocate(allocator: &FlexAllocator) -> Result<CompositeAddress, FlexError> {
    allocator.allocate(BLOCK, &AllocationDirective::default())
}

/// A count that threads wait for.
#[derive(Default)]
pub(crate) struct Count {
    value: Mutex<u64>,
    changed: Condvar,
}

impl Count {
    pub(crate) fn add_one(&self) {
        *self.value.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    pub(crate) fn wait_for(&self, count: u64) {
        let mut value = self.value.lock().unwrap();
        while *value < count {
            value = self.changed.wait(value).unwrap();
        }
    }
}

crate::sync::thread_local! {
    static TOKEN: Cell<usize> = const { Cell::new(0) };
    static ATTACHED: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn is_attached() -> bool {
    ATTACHED.with(Cell::get)
}

fn token() -> ThreadToken {
    ThreadToken(TOKEN.with(Cell::get))
}

/// What runs in the middle of a collection, detached.
type Finalizer = Box<dyn FnMut() + Send>;

/// One thread at a time is attached, one collection at a time runs, and others run in the middle of one.
///
/// Counters are std's: they are no steps of the model.
#[derive(Default)]
pub(crate) struct ModelInterpreter {
    attached: Mutex<bool>,
    detached: Condvar,
    collecting: AtomicBool,
    /// Garbage by layer: a collection takes the front one.
    garbage: Mutex<VecDeque<Vec<CompositeAddress>>>,
    pub(crate) finalizers: Mutex<Vec<Finalizer>>,
    next_token: AtomicU32,
    /// Answers "alone".
    pub(crate) alone: AtomicBool,
    pub(crate) runs: AtomicU64,
    pub(crate) refused: AtomicU64,
    stops: crate::sync::atomic::AtomicU64,
    /// Counts whatever wants to be ordered.
    steps: AtomicU64,
    /// The step at which the newest collection began.
    pub(crate) began: AtomicU64,
    /// Is told about stops.
    gate: Mutex<Option<Arc<Gate>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

impl ModelInterpreter {
    /// The number of this step among all that asked.
    pub(crate) fn step(&self) -> u64 {
        self.steps.fetch_add(1, Ordering::SeqCst)
    }

    /// Tells a gate about stops; `None` ends it.
    pub(crate) fn observe(&self, gate: Option<Arc<Gate>>) {
        let before = std::mem::replace(&mut *locked(&self.gate), gate);
        drop(before);
    }

    pub(crate) fn add_garbage(&self, garbage: Vec<CompositeAddress>) {
        locked(&self.garbage).push_back(garbage);
    }

    /// Adds to the newest layer.
    pub(crate) fn add_to_last_layer(&self, block: CompositeAddress) {
        let mut garbage = locked(&self.garbage);
        match garbage.back_mut() {
            Some(layer) => layer.push(block),
            None => garbage.push_back(vec![block]),
        }
    }

    pub(crate) fn take_garbage(&self) -> Vec<CompositeAddress> {
        std::mem::take(&mut *locked(&self.garbage)).into_iter().flatten().collect()
    }

    /// Gives the calling thread a state and runs `body` attached.
    pub(crate) fn python_thread<R>(&self, body: impl FnOnce() -> R) -> R {
        self.ensure_token();
        self.attach();
        let result = body();
        self.detach();
        result
    }

    pub(crate) fn allow_threads<R>(&self, body: impl FnOnce() -> R) -> R {
        self.detach();
        let result = body();
        self.attach();
        result
    }

    /// A collection that is not the gate's.
    pub(crate) fn user_collect(&self) {
        self.run(false);
    }

    fn ensure_token(&self) {
        if token().0 == 0 {
            let next = self.next_token.fetch_add(1, Ordering::SeqCst) + 1;
            TOKEN.with(|token| token.set(next as usize));
        }
    }

    fn attach(&self) {
        crate::rank::assert_unlocked("attach");
        assert!(!is_attached());
        let mut attached = locked(&self.attached);
        while *attached {
            attached = self.detached.wait(attached).unwrap();
        }
        *attached = true;
        ATTACHED.with(|attached| attached.set(true));
    }

    fn detach(&self) {
        crate::rank::assert_unlocked("detach");
        assert!(is_attached());
        ATTACHED.with(|attached| attached.set(false));
        *locked(&self.attached) = false;
        self.detached.notify_one();
    }

    /// One collection, unless another one is running: then `None`.
    fn run(&self, for_gate: bool) -> Option<u64> {
        assert!(is_attached());
        if self.collecting.swap(true, Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return None;
        }
        if !for_gate {
            collecting::begin_foreign(Gaps(0));
        }
        self.began.store(self.step(), Ordering::SeqCst);
        self.runs.fetch_add(1, Ordering::SeqCst);
        let garbage = locked(&self.garbage).pop_front().unwrap_or_default();
        let found = garbage.len() as u64;
        let finalizers = std::mem::take(&mut *locked(&self.finalizers));
        self.allow_threads(|| {
            finalizers.into_iter().for_each(|mut finalizer| finalizer());
            drop(garbage);
        });
        if !for_gate {
            collecting::end_foreign();
        }
        self.collecting.store(false, Ordering::SeqCst);
        self.stops.fetch_add(1, Ordering::SeqCst);
        let gate = locked(&self.gate).clone();
        if let Some(gate) = gate {
            gate.collection_stopped();
        }
        Some(found)
    }
}

impl Reclaimer for ModelInterpreter {
    fn entry(&self) -> Entry {
        Entry {
            attached: is_attached(),
            thread: token(),
            thread_ident: token().0 as u64,
            in_collection: collecting::foreign(),
            unavailable: None,
        }
    }

    fn collect(&self, _proof: &Unlocked<'_>, _generation: Generation) -> Collected {
        let mark = GateCollection::begin();
        let found = self.run(true);
        drop(mark);
        Collected {
            ran: found.is_some(),
            interrupted: false,
            objects: found.unwrap_or(0),
            elapsed: Duration::ZERO,
        }
    }

    fn collector_enabled(&self, _proof: &Unlocked<'_>) -> bool {
        true
    }

    fn hints(&self, _proof: &Unlocked<'_>, _failed: &FailedRequest) -> Hints {
        assert!(is_attached());
        Hints::default()
    }

    fn detached(&self, _proof: &Unlocked<'_>, body: &mut dyn FnMut()) {
        self.allow_threads(body);
    }

    fn attached(&self, _proof: &Unlocked<'_>, thread: ThreadToken, body: &mut dyn FnMut()) {
        assert_eq!(thread, token(), "a thread's own state");
        self.attach();
        body();
        self.detach();
    }

    fn new_thread(&self, _proof: &Unlocked<'_>) -> ThreadToken {
        self.ensure_token();
        token()
    }

    fn is_alone(
        &self,
        _proof: &Unlocked<'_>,
        _requester: &Entry,
        ignore: &dyn Fn(ThreadToken) -> bool,
    ) -> bool {
        assert!(is_attached() && ignore(token()));
        self.alone.load(Ordering::SeqCst)
    }

    fn has_other_threads(&self, _proof: &Unlocked<'_>, _ignore: &dyn Fn(ThreadToken) -> bool) -> bool {
        true
    }

    fn is_finalizing(&self) -> bool {
        false
    }

    fn young_is_cheap(&self) -> bool {
        false
    }

    fn gaps(&self) -> Gaps {
        Gaps(0)
    }

    fn collections_stopped(&self) -> u64 {
        self.stops.load(Ordering::SeqCst)
    }

    fn hold_at_exit(&self, _entry: &Entry, _deadline: Instant) {}

    fn end_forked_child(&self) -> ! {
        unreachable!("the models do not fork")
    }
}

/// Why a request gave up, as the schedules count it.
pub(crate) fn skipped(allocator: &FlexAllocator) -> Vec<(SkipReason, u64)> {
    let skipped = allocator.pressure_statistics().skipped;
    SkipReason::ALL.iter().copied().zip(skipped).filter(|(_, count)| *count > 0).collect()
}
