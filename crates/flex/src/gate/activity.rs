//! What goes on at a gate, for tests that force interleavings: they look until the threads they set up are where
//! they want them. Lock: `Gate::state`, held to copy.

use super::Gate;

/// What goes on at a gate at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GateActivity {
    /// Threads that wait: requests for a collection or a run of hooks, whoever waits for a foreign collection, and
    /// [`Gate::close`].
    pub waiting: usize,
    /// The flight in the air waits for a collection that is not the gate's.
    pub behind_foreign: bool,
}

impl Gate {
    /// What goes on now; nothing in a forked child.
    #[doc(hidden)]
    pub fn activity(&self) -> GateActivity {
        self.lock().map_or_else(
            |_| GateActivity::default(),
            |state| GateActivity {
                waiting: state.waiting,
                behind_foreign: state.flight.is_some_and(|flight| flight.is_behind_foreign()),
            },
        )
    }
}
