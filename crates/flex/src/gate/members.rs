//! The allocators that a gate knows: a collection runs for a request of one of them and frees memory of all, and the
//! history of each tells what it freed there, and for whom.
//!
//! Lock: the list of members, a leaf, held to copy it. It is std's and no step of the models: it changes when a program
//! sets its devices up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{Collected, Gate, Generation, Petition};
use crate::allocator::FlexAllocator;
use crate::error::FlexError;
use crate::fork::is_forked;
use crate::history::{EventKind, History, thread_id};
use crate::lock::AllocatorGuard;
use crate::pressure::{PressureCounters, PressureRequest, SharedCallback};

/// Whose request it is, for what histories say of a collection that runs for it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Requester {
    device: u32,
    thread_id: u32,
    site: u32,
}

impl Requester {
    /// The calling thread, with a request.
    pub(super) fn new(guard: &AllocatorGuard<'_>, request: &PressureRequest) -> Self {
        Requester { device: guard.shared().ordinal, thread_id: thread_id(), site: request.placement.site }
    }
}

/// The allocators of a gate. What is dropped leaves at the next collection.
#[derive(Default)]
pub(super) struct Members(Mutex<Vec<Member>>);

struct Member {
    counters: Weak<PressureCounters>,
    history: Weak<History>,
}

/// One device's memory while a collection runs.
struct Watched {
    counters: Arc<PressureCounters>,
    history: Arc<History>,
    reclaimed_before: u64,
}

impl Watched {
    fn new(counters: Arc<PressureCounters>, history: Arc<History>) -> Self {
        let reclaimed_before = counters.reclaimed();
        Watched { counters, history, reclaimed_before }
    }

    fn reclaimed_bytes(&self) -> u64 {
        self.counters.reclaimed() - self.reclaimed_before
    }
}

/// A collection that is about to run for a request, to be written down when it has run.
pub(super) struct Account {
    requester: Requester,
    own: Watched,
    others: Vec<Watched>,
}

impl Members {
    fn lock(&self) -> MutexGuard<'_, Vec<Member>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn while_locked(&self, body: impl FnOnce()) {
        let _members = self.lock();
        body();
    }

    fn add(&self, counters: &Arc<PressureCounters>, history: &Arc<History>) {
        let member = Member { counters: Arc::downgrade(counters), history: Arc::downgrade(history) };
        let mut members = self.lock();
        if !members.iter().any(|known| known.history.ptr_eq(&member.history)) {
            members.push(member);
        }
    }

    /// All but the one with this history.
    fn but(&self, history: &Arc<History>) -> Vec<Watched> {
        let mut others = Vec::new();
        self.lock().retain(|member| {
            let (Some(counters), Some(other)) = (member.counters.upgrade(), member.history.upgrade()) else {
                return false;
            };
            others.push((counters, other));
            true
        });
        // Nothing is dropped under the lock: with a history goes what tells places apart, which is foreign code.
        others.retain(|(_, other)| !Arc::ptr_eq(other, history));
        others.into_iter().map(|(counters, history)| Watched::new(counters, history)).collect()
    }
}

impl Gate {
    /// Has this gate reclaim memory for an allocator: sets the [`ladder`](Self::ladder) as its memory-pressure
    /// callback, and from now on its history also tells of collections that run for requests of other allocators of the
    /// gate and free memory of this one. Returns the callback before.
    ///
    /// # Errors
    /// [`FlexError::Forked`] in a forked child.
    pub fn adopt(self: &Arc<Self>, allocator: &FlexAllocator) -> Result<Option<SharedCallback>, FlexError> {
        if is_forked() {
            return Err(FlexError::Forked);
        }
        self.members.add(&allocator.shared().counters, &allocator.shared().history);
        allocator.set_memory_pressure_callback(Some(self.ladder()))
    }

    /// Begins to count what a collection frees that is about to run for a request. The process is no forked child.
    pub(super) fn account(&self, petition: &Petition) -> Account {
        Account {
            requester: petition.requester,
            own: Watched::new(Arc::clone(&petition.counters), Arc::clone(&petition.history)),
            others: self.members.but(&petition.history),
        }
    }
}

impl Account {
    /// Writes the collection down, which has ended, in the histories of all devices that it concerns: as an event of
    /// the thread whose request it ran for.
    pub(super) fn settle(self, generation: Generation, collected: &Collected) {
        let Requester { device: for_device, thread_id, site } = self.requester;
        let &Collected { objects, elapsed, .. } = collected;
        let record = |watched: &Watched, site: u32| {
            let reclaimed_bytes = watched.reclaimed_bytes();
            let kind = EventKind::Collected { generation, objects, reclaimed_bytes, elapsed, for_device };
            watched.history.record_for(kind, site, thread_id);
        };
        if self.own.history.is_on() {
            record(&self.own, self.own.history.shown(site));
        }
        // A site is known to the history that found it.
        let others = self.others.iter().filter(|other| other.history.is_on() && other.reclaimed_bytes() > 0);
        others.for_each(|other| record(other, 0));
    }
}
