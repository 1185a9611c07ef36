//! The gate: one per interpreter, shared by all its allocators. It lets one collection run at a time, and knows
//! whether it really ran.
//!
//! Lock: `Gate::state`, a leaf like the allocator mutex and never taken together with it. Nothing waits while
//! holding it except on its own condition variables, and no foreign code runs under it. Every wait for another
//! thread has the deadline of the request; an attached thread detaches for it. The list of members has a leaf too.

mod census;
mod collector;
mod flight;
mod hooks;
mod job;
mod ladder;
mod members;
#[cfg(all(test, loom))]
mod models;
mod policy;
mod reclaimer;
#[cfg(all(test, shuttle))]
mod schedules;

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, Weak};
use std::task::Wake;
use std::time::{Duration, Instant};

#[doc(hidden)]
pub use census::Census;
pub use hooks::{HookEvent, HookId, HookOutcome, PressureHook};
pub use policy::{CollectPolicy, PolicySettings};
pub use reclaimer::{Collected, Entry, FailedRequest, Generation, Reclaimer, ThreadToken};

use flight::{Flight, Landing};
use hooks::Hooks;
use job::Job;
use ladder::Ladder;
use members::{Members, Requester};
use policy::Policy;

use crate::fork::{Forked, is_forked};
use crate::history::History;
use crate::pressure::{PressureCounters, SharedCallback};
use crate::rank;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, now};

/// Serialises the collections of one interpreter.
pub struct Gate {
    /// For the collector threads it starts.
    me: Weak<Gate>,
    reclaimer: Arc<dyn Reclaimer>,
    policy: Policy,
    members: Members,
    state: Mutex<State>,
    /// A flight landed, a job was answered, a foreign collection stopped, or the gate closes.
    changed: Condvar,
    /// A job was queued, or the gate closes.
    work: Condvar,
    closing: AtomicBool,
}

/// What `Gate::state` protects.
#[derive(Default)]
struct State {
    /// Epoch of the newest flight.
    epoch: u64,
    flight: Option<Flight>,
    /// The newest landings, oldest first.
    landings: VecDeque<Landing>,
    jobs: VecDeque<Arc<Job>>,
    hooks: Hooks,
    /// Threads in [`Gate::wait`]. Nothing is decided by it: tests ask for it.
    waiting: usize,
    /// Collector threads that have been started and did not get here yet.
    starting_collectors: usize,
    /// Collector threads that wait for a job.
    idle_collectors: usize,
    /// Collector threads that wait to attach.
    attaching_collectors: usize,
    /// Collector threads that have answered and are about to look for the next job.
    returning_collectors: usize,
    /// The thread states of collector threads that run no job.
    resting_collectors: Vec<ThreadToken>,
}

/// One request at the gate.
#[derive(Clone)]
struct Petition {
    entry: Entry,
    requester: Requester,
    deadline: Instant,
    respect_disable: bool,
    counters: Arc<PressureCounters>,
    history: Arc<History>,
    grant: Arc<Grant>,
    /// A hook or a collection that ran for it was interrupted by the user, on whatever thread.
    interrupted: Arc<AtomicBool>,
}

/// Tells a request that sleeps at the gate that it has been granted memory: the waker it registers with.
struct Grant {
    gate: Weak<Gate>,
    given: AtomicBool,
}

impl Wake for Grant {
    fn wake(self: Arc<Self>) {
        self.given.store(true, Ordering::SeqCst);
        if let Some(gate) = self.gate.upgrade()
            && let Ok(state) = gate.lock_innermost()
        {
            // Whoever looked before is asleep by now.
            drop(state);
            gate.changed.notify_all();
        }
    }
}

impl Petition {
    fn is_late(&self) -> bool {
        now() >= self.deadline
    }

    fn note_interrupt(&self, interrupted: bool) {
        if interrupted {
            self.interrupted.store(true, Ordering::SeqCst);
        }
    }

    /// Whether the request has been granted memory: there is nothing to wait for any more. A hint, the search tells.
    fn is_granted(&self) -> bool {
        self.grant.given.load(Ordering::SeqCst)
    }
}

/// How long [`Gate::close`] waits for the collection in flight.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

impl Gate {
    /// Makes the gate of an interpreter.
    pub fn new(reclaimer: Arc<dyn Reclaimer>, settings: PolicySettings) -> Arc<Self> {
        Arc::new_cyclic(|me| Gate {
            me: Weak::clone(me),
            reclaimer,
            policy: Policy::new(settings),
            members: Members::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            work: Condvar::new(),
            closing: AtomicBool::new(false),
        })
    }

    /// The memory-pressure callback that runs the reclaim ladder through this gate.
    pub fn ladder(self: &Arc<Self>) -> SharedCallback {
        Arc::new(Ladder::new(Arc::clone(self)))
    }

    /// The settings now.
    pub fn policy(&self) -> PolicySettings {
        self.policy.get()
    }

    /// Changes the settings for requests that begin afterwards.
    pub fn set_policy(&self, settings: PolicySettings) {
        self.policy.update(|current| *current = settings);
    }

    /// Changes some of the settings, and leaves the others to those who change them at the same time.
    pub fn update_policy(&self, change: impl FnOnce(&mut PolicySettings)) {
        self.policy.update(change);
    }

    /// To be called when a collection was seen to stop, on any thread: those who wait for it look again.
    pub fn collection_stopped(&self) {
        self.changed.notify_all();
    }

    /// Closes the gate at interpreter exit: no collection begins afterwards, and requests that wait for one end.
    /// Waits, bounded, for the collection in flight, unless somebody waited for that in vain already. The calling
    /// thread must be detached.
    pub fn close(&self) {
        let Ok(mut state) = self.lock() else { return };
        self.closing.store(true, Ordering::SeqCst);
        self.changed.notify_all();
        self.work.notify_all();
        let deadline = now() + CLOSE_TIMEOUT;
        while state.flight.is_some_and(|flight| !flight.is_overdue()) {
            let left = deadline.saturating_duration_since(now());
            if left.is_zero() {
                return;
            }
            state = self.wait(state, left);
        }
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>, Forked> {
        rank::assert_unlocked("lock the gate");
        self.lock_innermost()
    }

    /// As [`lock`](Self::lock), also for a thread that frees a block of one allocator while it holds another's mutex:
    /// whoever holds this lock waits for no mutex.
    fn lock_innermost(&self) -> Result<MutexGuard<'_, State>, Forked> {
        if is_forked() {
            return Err(Forked);
        }
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn grant(&self) -> Arc<Grant> {
        Arc::new(Grant { gate: Weak::clone(&self.me), given: AtomicBool::new(false) })
    }

    /// Waits for a change, at most for `timeout`. The caller looks at the state again in any case.
    fn wait<'a>(&self, mut state: MutexGuard<'a, State>, timeout: Duration) -> MutexGuard<'a, State> {
        state.waiting += 1;
        let mut state = self.changed.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0;
        state.waiting -= 1;
        state
    }
}
