//! Jobs: what a request asks of a collector thread.
//!
//! Lock: a job's progress changes only under `Gate::state`, which decides who acts on it; its own mutex is there to
//! share it and is never contended.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::flight::Outcome;
use super::hooks::{HookEvent, PressureHook};
use super::{FailedRequest, Generation, Petition};
use crate::pressure::{Hints, SkipReason};
use crate::signals::Mask;

/// What a collector thread is asked to do.
#[derive(Clone)]
pub(super) enum Task {
    /// Collect, for the flight with this epoch.
    Collect { generation: Generation, epoch: u64 },
    /// Call a user hook.
    Hook { hook: Arc<dyn PressureHook>, event: HookEvent },
    /// Ask the interpreter why memory may still be held.
    Hints(FailedRequest),
}

/// What it answers.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    /// The collection ended.
    Collected(Outcome),
    /// Nobody could hold the interpreter against the requester: it collects by itself, so that in a program with
    /// one thread finalizers stay on that thread.
    Alone,
    Hooked,
    Hints(Hints),
    /// The reclaimer could not be used; the flight, if any, has landed.
    Failed(SkipReason),
}

impl fmt::Display for Task {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Task::Collect { generation, .. } => write!(formatter, "{generation:?} collection"),
            Task::Hook { .. } => formatter.write_str("hook"),
            Task::Hints(_) => formatter.write_str("hints"),
        }
    }
}

/// How far a job has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Queued,
    /// A collector thread has taken it and waits for the interpreter.
    Attaching,
    Running,
    /// Its request went away before it began.
    Cancelled,
    /// Its request went away while it ran.
    Abandoned,
}

/// One job: what is asked, for whom, how far it is, and the answer.
pub(super) struct Job {
    pub(super) task: Task,
    pub(super) petition: Petition,
    /// The signals that the thread that asks blocks.
    pub(super) mask: Mask,
    progress: Mutex<Progress>,
}

struct Progress {
    phase: Phase,
    answered: bool,
    answer: Option<Answer>,
}

impl Job {
    /// The calling thread asks.
    pub(super) fn new(task: Task, petition: Petition) -> Self {
        let progress = Progress { phase: Phase::Queued, answered: false, answer: None };
        Job { task, petition, mask: Mask::current(), progress: Mutex::new(progress) }
    }

    pub(super) fn phase(&self) -> Phase {
        self.progress().phase
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.progress().phase = phase;
    }

    pub(super) fn take_answer(&self) -> Option<Answer> {
        self.progress().answer.take()
    }

    /// Answers once: a second answer changes nothing and is reported as false.
    pub(super) fn answer(&self, answer: Answer) -> bool {
        let mut progress = self.progress();
        let first = !std::mem::replace(&mut progress.answered, true);
        if first {
            progress.answer = Some(answer);
        }
        first
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
