//! User hooks: what a program offers to give up before a request fails, such as a cache.
//!
//! Rung 5 of the ladder. Hooks run by descending priority, outside of any flight, on an attached thread that holds no
//! lock of ours, with a search after each. One request at a time runs them; others wait for the run, bounded by
//! their deadline, and search. So a hook that hands its work to a thread that allocates under pressure does not run
//! hooks again. What a hook answers means nothing; progress is what the search finds.
//!
//! Lock: `Gate::state`. A hook is cloned out of the table to be called, and dropped outside the lock.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Instant;

use super::flight::Missed;
use super::job::Task;
use super::{Gate, Petition};
use crate::lock::Unlocked;
use crate::pressure::collecting::InPressure;
use crate::pressure::{PressureCause, PressureCounters};
use crate::sync::now;

/// What a hook is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HookEvent {
    /// Which device of the process is exhausted: [`AllocatorOptions::ordinal`](crate::AllocatorOptions).
    pub device: u32,
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// Free bytes in the regions the request may use.
    pub free_bytes: u64,
    /// The largest free block in them, in bytes.
    pub largest_free_bytes: u64,
    /// How many hooks have been called for this request, this one included.
    pub attempt: u32,
    /// Why nothing was found.
    pub cause: PressureCause,
}

/// How a hook ended. What it freed is seen by the next search, not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookOutcome {
    /// It returned.
    Done,
    /// It failed, which has been reported.
    Failed,
    /// It was interrupted by the user: the interrupt is raised again when the request has ended.
    Interrupted,
}

/// A hook of the program.
pub trait PressureHook: Send + Sync {
    /// Gives up what it can. The calling thread is attached.
    fn run(&self, proof: &Unlocked<'_>, event: &HookEvent) -> HookOutcome;
}

/// Names a registered hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HookId(u64);

impl HookId {
    /// The name as a number.
    pub fn to_raw(self) -> u64 {
        self.0
    }

    /// The name that [`to_raw`](Self::to_raw) gave; any other number names no hook.
    pub fn from_raw(raw: u64) -> Self {
        HookId(raw)
    }
}

/// A hook's place: by descending priority, then in the order of registration.
pub(super) type Rank = (Reverse<i64>, HookId);

/// The registered hooks, and who runs them.
#[derive(Default)]
pub(super) struct Hooks {
    /// Sorted by rank.
    table: Vec<(Rank, Arc<dyn PressureHook>)>,
    registered: u64,
    /// A request runs the hooks.
    running: bool,
    /// Its deadline. Others wait no longer for it.
    deadline: Option<Instant>,
    /// The deadline of the request that runs them passed. Later requests do not wait for it.
    overdue: bool,
    /// Runs that have ended.
    runs: u64,
}

impl Gate {
    /// Registers a hook; higher priorities run first, equal ones in the order of registration.
    ///
    /// # Errors
    /// Gives the hook back in a forked child.
    pub fn register_hook(
        &self,
        priority: i64,
        hook: Arc<dyn PressureHook>,
    ) -> Result<HookId, Arc<dyn PressureHook>> {
        let Ok(mut state) = self.lock() else { return Err(hook) };
        let hooks = &mut state.hooks;
        let id = HookId(hooks.registered);
        hooks.registered += 1;
        let rank = (Reverse(priority), id);
        let place = hooks.table.partition_point(|(other, _)| *other < rank);
        hooks.table.insert(place, (rank, hook));
        Ok(id)
    }

    /// Removes a hook, at any time, also from inside a hook. The caller drops it.
    pub fn remove_hook(&self, id: HookId) -> Option<Arc<dyn PressureHook>> {
        let mut state = self.lock().ok()?;
        let place = state.hooks.table.iter().position(|((_, other), _)| *other == id)?;
        Some(state.hooks.table.remove(place).1)
    }

    /// Calls a hook where the request's thread may: as a collection.
    ///
    /// # Errors
    /// Why it was not called, or did not return in time.
    pub(super) fn run_hook(
        &self,
        proof: &Unlocked<'_>,
        petition: &Petition,
        hook: Arc<dyn PressureHook>,
        event: HookEvent,
    ) -> Result<(), Missed> {
        if petition.entry.attached {
            call(proof, petition, &*hook, &event);
            return Ok(());
        }
        let task = Task::Hook { hook: Arc::clone(&hook), event };
        if self.ask_collector_for_hook(task, petition)? {
            self.reclaimer
                .attached(proof, petition.entry.thread, &mut || call(proof, petition, &*hook, &event));
        }
        Ok(())
    }

    /// The first hook of a run after `last`, in the order of calls.
    pub(super) fn next_hook(
        &self,
        run: &HookRun<'_>,
        last: Option<Rank>,
    ) -> Option<(Rank, Arc<dyn PressureHook>)> {
        let state = self.lock().ok()?;
        let mut table = state.hooks.table.iter().filter(|((_, id), _)| *id < run.end);
        let next = table.find(|(rank, _)| last.is_none_or(|last| *rank > last));
        next.map(|(rank, hook)| (*rank, Arc::clone(hook)))
    }

    /// Makes this request the one that runs the hooks, or waits for another request's run.
    pub(super) fn enter_hooks(&self, proof: &Unlocked<'_>, petition: &Petition) -> HookTurn<'_> {
        {
            let Ok(mut state) = self.lock() else { return HookTurn::Nothing };
            if state.hooks.table.is_empty() || self.is_closing() {
                return HookTurn::Nothing;
            }
            if !state.hooks.running {
                state.hooks.running = true;
                state.hooks.deadline = Some(petition.deadline);
                let (number, end) = (state.hooks.runs, HookId(state.hooks.registered));
                return HookTurn::Own(HookRun { gate: self, number, end });
            }
        }
        self.wait_detached(proof, petition, &mut || self.wait_for_hooks(petition));
        HookTurn::Shared
    }

    fn wait_for_hooks(&self, petition: &Petition) {
        let Ok(mut state) = self.lock() else { return };
        let runs = state.hooks.runs;
        let goes_on = |hooks: &Hooks| hooks.running && hooks.runs == runs && !hooks.overdue;
        while goes_on(&state.hooks) && !self.is_closing() && !petition.is_granted() {
            let deadline = state.hooks.deadline.map_or(petition.deadline, |run| run.min(petition.deadline));
            let left = deadline.saturating_duration_since(now());
            if left.is_zero() {
                return;
            }
            state = self.wait(state, left);
        }
    }
}

/// What the hooks are to a request.
pub(super) enum HookTurn<'a> {
    /// There are none, or the gate closes.
    Nothing,
    /// Another request ran them, or runs them past its deadline.
    Shared,
    /// It runs them.
    Own(HookRun<'a>),
}

/// The right to run the hooks, until dropped.
pub(super) struct HookRun<'a> {
    gate: &'a Gate,
    /// How many runs had ended when it began: a hook that was left behind ends the run, and then others may begin.
    number: u64,
    /// Hooks with this name and later ones were registered since: they are not of this run, or a hook that registers
    /// another would make it endless.
    end: HookId,
}

impl Drop for HookRun<'_> {
    fn drop(&mut self) {
        let Ok(mut state) = self.gate.lock() else { return };
        // A hook that goes on past the deadline ends the run when it returns.
        if state.hooks.runs == self.number && !state.hooks.overdue {
            state.hooks.end_run();
        }
        self.gate.changed.notify_all();
    }
}

impl Hooks {
    /// Others may run the hooks.
    pub(super) fn end_run(&mut self) {
        self.running = false;
        self.deadline = None;
        self.overdue = false;
        self.runs += 1;
    }

    pub(super) fn is_running(&self) -> bool {
        self.running
    }

    pub(super) fn count(&self) -> usize {
        self.table.len()
    }

    /// The hook that runs goes on past the deadline of its request.
    pub(super) fn mark_overdue(&mut self) {
        self.overdue = true;
    }
}

/// Calls a hook, attached, and counts it. What it allocates does not run hooks.
pub(super) fn call(proof: &Unlocked<'_>, petition: &Petition, hook: &dyn PressureHook, event: &HookEvent) {
    // The requester's own thread is marked already.
    let _in_pressure = InPressure::begin();
    PressureCounters::add(&petition.counters.hooks_run, 1);
    let outcome = hook.run(proof, event);
    if outcome != HookOutcome::Done {
        PressureCounters::add(&petition.counters.hooks_failed, 1);
    }
    petition.note_interrupt(outcome == HookOutcome::Interrupted);
}
