//! What a gate has under way: for tests that end with nothing left behind, and for those that force interleavings and
//! look until the threads they set up are where they want them. Lock: `Gate::state`, held for a look.

use super::Gate;

/// A count of what is under way at a gate.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Census {
    /// Flights in the air: at most 1.
    pub flights: usize,
    /// Flights that wait for a collection that is not the gate's.
    pub behind_foreign: usize,
    /// Jobs that no collector thread has taken.
    pub queued_jobs: usize,
    /// Collector threads that were started and have not arrived, or have a job and wait to attach.
    pub attaching_collectors: usize,
    /// Requests that run the hooks: at most 1.
    pub hook_runs: usize,
    /// Threads that wait: requests for a collection or a run of hooks, whoever waits for a foreign collection, and
    /// [`Gate::close`].
    pub waiting: usize,
    /// Registered hooks.
    pub hooks: usize,
}

impl Gate {
    /// Runs `body` with the gate's locks held. For tests of what a forked child does then.
    #[doc(hidden)]
    pub fn while_locked(&self, body: impl FnOnce()) {
        if let Ok(_state) = self.lock() {
            self.members.while_locked(body);
        }
    }

    /// What is under way now. All 0 in a forked child.
    #[doc(hidden)]
    pub fn census(&self) -> Census {
        let Ok(mut state) = self.lock() else { return Census::default() };
        let newest = state.epoch;
        Census {
            flights: usize::from(state.flight.is_some()),
            behind_foreign: usize::from(state.is_behind_foreign(newest)),
            queued_jobs: state.jobs.len(),
            attaching_collectors: state.starting_collectors + state.attaching_collectors,
            hook_runs: usize::from(state.hooks.is_running()),
            waiting: state.waiting,
            hooks: state.hooks.count(),
        }
    }
}
