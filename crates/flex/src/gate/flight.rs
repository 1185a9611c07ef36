//! Flights: one collection at a time, and what became of the last ones.
//!
//! A flight takes off when a request finds none in the air, and lands when its collection ends, whoever runs it.
//! Its epoch tells whether it took off after a request had failed: then it counts as that request's collection.

use std::time::{Duration, Instant};

use super::{Gate, Generation, Petition, State};
use crate::fork::is_forked;
use crate::gate::Collected;
use crate::lock::Unlocked;
use crate::pressure::SkipReason;
use crate::sync::now;

/// How many landings are remembered for requests that wait for them.
const REMEMBERED_LANDINGS: usize = 32;

/// The longest step between two looks at a foreign collection.
const LONGEST_POLL: Duration = Duration::from_millis(50);

/// The flight in the air.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flight {
    epoch: u64,
    /// The deadline of the request it took off for.
    deadline: Instant,
    /// It waits for a collection that is not the gate's.
    behind_foreign: bool,
    /// That deadline passed, and somebody waited for it in vain. Later requests do not wait for it at all.
    overdue: bool,
}

impl Flight {
    pub(super) fn is_overdue(&self) -> bool {
        self.overdue
    }
}

/// Why a collection did not run, or nobody waited for its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missed {
    Skipped(SkipReason),
    /// The request was granted memory meanwhile.
    Granted,
}

impl From<SkipReason> for Missed {
    fn from(reason: SkipReason) -> Self {
        Missed::Skipped(reason)
    }
}

/// How a collection ended.
pub(super) type Outcome = Result<Collected, Missed>;

/// A flight that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Landing {
    pub(super) epoch: u64,
    pub(super) generation: Generation,
    pub(super) outcome: Outcome,
}

/// What a request got from the gate.
pub(super) enum Turn {
    /// Its own collection.
    Own(Outcome),
    /// Somebody else's landed while it waited; `None` if so many did that it is forgotten, or none in time, or if the
    /// request was granted memory first.
    Shared(Option<Landing>),
}

impl State {
    fn take_off(&mut self, deadline: Instant) -> u64 {
        self.epoch += 1;
        self.flight = Some(Flight { epoch: self.epoch, deadline, behind_foreign: false, overdue: false });
        self.epoch
    }

    /// The flight with this epoch, if it has not landed.
    pub(super) fn in_the_air(&mut self, epoch: u64) -> Option<&mut Flight> {
        self.flight.as_mut().filter(|flight| flight.epoch == epoch)
    }

    /// Ends a flight. Once: a second call for the same epoch changes nothing.
    pub(super) fn land(&mut self, epoch: u64, generation: Generation, outcome: Outcome) {
        if self.in_the_air(epoch).is_some() {
            self.flight = None;
            if self.landings.len() == REMEMBERED_LANDINGS {
                self.landings.pop_front();
            }
            self.landings.push_back(Landing { epoch, generation, outcome });
        }
    }

    /// Somebody has waited for a flight in vain. One that is still in time is only slow for them.
    pub(super) fn mark_overdue(&mut self, epoch: u64) {
        let now = now();
        if let Some(flight) = self.in_the_air(epoch) {
            flight.overdue |= now >= flight.deadline;
        }
    }

    pub(super) fn is_behind_foreign(&mut self, epoch: u64) -> bool {
        self.in_the_air(epoch).is_some_and(|flight| flight.behind_foreign)
    }
}

impl Gate {
    /// The epoch of the newest flight: later ones began after this call.
    pub(super) fn epoch(&self) -> u64 {
        self.lock().map_or(0, |state| state.epoch)
    }

    /// Runs a collection for a request, or waits for the one in flight.
    pub(super) fn collect(&self, proof: &Unlocked<'_>, petition: &Petition, generation: Generation) -> Turn {
        let Ok(mut state) = self.lock() else { return Turn::Own(Err(SkipReason::Forked.into())) };
        if self.is_closing() {
            return Turn::Own(Err(SkipReason::Finalizing.into()));
        }
        match state.flight {
            Some(Flight { overdue: true, .. }) => Turn::Own(Err(SkipReason::Timeout.into())),
            Some(flight) => {
                drop(state);
                self.share(proof, petition, flight.epoch)
            }
            None => {
                let epoch = state.take_off(petition.deadline);
                drop(state);
                Turn::Own(self.fly(proof, petition, generation, epoch))
            }
        }
    }

    /// Waits for the flight of another request.
    fn share(&self, proof: &Unlocked<'_>, petition: &Petition, epoch: u64) -> Turn {
        let mut turn = Turn::Shared(None);
        self.wait_detached(proof, petition, &mut || turn = self.wait_for_landing(petition, epoch));
        turn
    }

    fn wait_for_landing(&self, petition: &Petition, epoch: u64) -> Turn {
        let Ok(mut state) = self.lock() else { return Turn::Own(Err(SkipReason::Forked.into())) };
        loop {
            if petition.is_granted() {
                return Turn::Shared(None);
            }
            if state.in_the_air(epoch).is_none() || self.is_closing() {
                return Turn::Shared(state.landings.iter().find(|landing| landing.epoch == epoch).copied());
            }
            if self.is_in_collection(petition) && state.is_behind_foreign(epoch) {
                // It waits for the collection that this thread is in the middle of.
                return Turn::Own(Err(SkipReason::Reentrant.into()));
            }
            let left = petition.deadline.saturating_duration_since(now());
            if left.is_zero() {
                state.mark_overdue(epoch);
                return Turn::Shared(None);
            }
            state = self.wait(state, left);
        }
    }

    /// Runs the collection of a flight where the request's thread may: inline if it was attached, else through a
    /// collector thread.
    fn fly(&self, proof: &Unlocked<'_>, petition: &Petition, generation: Generation, epoch: u64) -> Outcome {
        if !petition.entry.attached {
            return self.delegate(proof, petition, generation, epoch);
        }
        let mut landing =
            LandOnDrop { gate: self, epoch, generation, outcome: Err(SkipReason::Timeout.into()) };
        landing.outcome = self.run_collection(proof, petition, generation, epoch, false);
        landing.outcome
    }

    /// One collection on this thread, which is attached. If another thread is collecting, polls until it is done.
    pub(super) fn run_collection(
        &self,
        proof: &Unlocked<'_>,
        petition: &Petition,
        generation: Generation,
        epoch: u64,
        on_collector: bool,
    ) -> Outcome {
        let mut poll = Duration::from_micros(500);
        loop {
            if petition.respect_disable && !self.reclaimer.collector_enabled(proof) {
                return Err(SkipReason::Disabled.into());
            }
            let stopped = self.reclaimer.collections_stopped();
            let account = self.account(petition);
            let collected = self.reclaimer.collect(proof, generation);
            petition.note_interrupt(collected.interrupted);
            if is_forked() {
                return Err(SkipReason::Forked.into());
            }
            if collected.ran {
                petition.counters.count_collection(generation == Generation::Full, collected.elapsed);
                account.settle(generation, &collected);
                return Ok(collected);
            }
            let unseen =
                !on_collector && !self.reclaimer.has_other_threads(proof, &|thread| self.is_resting(thread));
            if self.is_in_collection(petition) || unseen {
                return Err(SkipReason::Reentrant.into());
            }
            self.wait_behind_foreign(proof, petition, epoch, stopped, poll)?;
            poll = (poll * 2).min(LONGEST_POLL);
        }
    }

    /// Waits, detached, for one step of a foreign collection, or says why there is nothing to wait for any more.
    fn wait_behind_foreign(
        &self,
        proof: &Unlocked<'_>,
        petition: &Petition,
        epoch: u64,
        stopped: u64,
        step: Duration,
    ) -> Result<(), Missed> {
        let mut in_time = false;
        self.reclaimer.detached(proof, &mut || {
            in_time = self.wait_for_foreign_stop(petition, epoch, stopped, step);
        });
        if is_forked() {
            Err(SkipReason::Forked.into())
        } else if self.is_closing() {
            Err(SkipReason::Finalizing.into())
        } else if petition.is_granted() {
            Err(Missed::Granted)
        } else if in_time {
            Ok(())
        } else {
            Err(SkipReason::Timeout.into())
        }
    }

    /// Waits until a collection is seen to stop, or for one step: seeing it is a hint, never trusted alone.
    /// False if there is no time left: a request that gives up meanwhile lands its flight.
    fn wait_for_foreign_stop(&self, petition: &Petition, epoch: u64, stopped: u64, step: Duration) -> bool {
        let end = petition.deadline.min(now() + step);
        let Ok(mut state) = self.lock() else { return false };
        if let Some(flight) = state.in_the_air(epoch) {
            flight.behind_foreign = true;
            self.changed.notify_all();
        }
        while self.reclaimer.collections_stopped() == stopped && !self.is_closing() && !petition.is_granted()
        {
            let left = end.saturating_duration_since(now());
            if left.is_zero() {
                break;
            }
            state = self.wait(state, left);
        }
        let stopped = self.reclaimer.collections_stopped() != stopped;
        let Some(flight) = state.in_the_air(epoch) else { return false };
        // Otherwise the next call will most likely be refused again.
        flight.behind_foreign = !stopped;
        !petition.is_late()
    }

    /// Runs `body`, which waits, with the request's thread detached.
    pub(super) fn wait_detached(&self, proof: &Unlocked<'_>, petition: &Petition, body: &mut dyn FnMut()) {
        if petition.entry.attached { self.reclaimer.detached(proof, body) } else { body() }
    }

    /// Whether the request's thread is in the middle of a foreign collection, as far as is known now: marks that were
    /// made before a gap prove nothing.
    fn is_in_collection(&self, petition: &Petition) -> bool {
        petition.entry.in_collection.is_some_and(|gaps| gaps == self.reclaimer.gaps())
    }

    pub(super) fn is_resting(&self, thread: super::ThreadToken) -> bool {
        self.lock().is_ok_and(|state| state.resting_collectors.contains(&thread))
    }

    pub(super) fn land(&self, epoch: u64, generation: Generation, outcome: Outcome) {
        if let Ok(mut state) = self.lock() {
            state.land(epoch, generation, outcome);
            self.changed.notify_all();
        }
    }
}

/// Lands a flight also when its collection unwinds.
pub(super) struct LandOnDrop<'a> {
    pub(super) gate: &'a Gate,
    pub(super) epoch: u64,
    pub(super) generation: Generation,
    pub(super) outcome: Outcome,
}

impl Drop for LandOnDrop<'_> {
    fn drop(&mut self) {
        self.gate.land(self.epoch, self.generation, self.outcome);
    }
}
