//! Collector threads: they collect for threads that entered the ladder detached.
//!
//! Such a thread must not attach by itself: its caller may hold locks that a thread in the interpreter wants, and
//! attaching has no deadline. A collector thread may wait for the interpreter as long as it takes; the request
//! that asked gives up at its deadline.
//!
//! They take none of the program's signals. While one runs Python code for a request it has the signal mask of the
//! thread that asked, as that would have, since threads and processes that such code starts keep it.
//!
//! Lock: `Gate::state`.

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, PoisonError};

use tracing::debug;

use super::flight::{LandOnDrop, Missed, Outcome};
use super::hooks;
use super::job::{Answer, Job, Phase, Task};
use super::{FailedRequest, Gate, Generation, Petition, State, ThreadToken};
use crate::fork::{Forked, is_forked};
use crate::lock::Unlocked;
use crate::pressure::{Hints, PressureCounters, SkipReason};
use crate::signals::with_signals_blocked;
use crate::sync::{MutexGuard, catch_unwind, now, thread};

/// How a collector thread that has a job is counted.
#[derive(Debug, Clone, Copy)]
enum Stage {
    Attaching,
    Serving,
    Returning,
}

impl State {
    fn available_collectors(&self) -> usize {
        self.starting_collectors
            + self.idle_collectors
            + self.attaching_collectors
            + self.returning_collectors
    }
}

impl Gate {
    /// Has a collector thread run the flight's collection, and waits for it, bounded.
    pub(super) fn delegate(
        &self,
        proof: &Unlocked<'_>,
        petition: &Petition,
        generation: Generation,
        epoch: u64,
    ) -> Outcome {
        match self.ask_collector(Task::Collect { generation, epoch }, petition) {
            Ok(Answer::Collected(outcome)) => outcome,
            Ok(Answer::Alone) => {
                let mut landing =
                    LandOnDrop { gate: self, epoch, generation, outcome: Err(SkipReason::Timeout.into()) };
                self.reclaimer.attached(proof, petition.entry.thread, &mut || {
                    landing.outcome = self.run_collection(proof, petition, generation, epoch, false);
                });
                landing.outcome
            }
            Ok(Answer::Hints(_) | Answer::Hooked) => unreachable!("that answers no collection"),
            Ok(Answer::Failed(reason)) => Err(reason.into()),
            Err(missed) => Err(missed),
        }
    }

    /// What the interpreter says about memory that is still held; nothing if it cannot be asked in time.
    pub(super) fn hints(&self, proof: &Unlocked<'_>, petition: &Petition, failed: FailedRequest) -> Hints {
        if is_forked() || self.is_closing() {
            return Hints::default();
        }
        if petition.entry.attached {
            return self.reclaimer.hints(proof, &failed);
        }
        match self.ask_collector(Task::Hints(failed), petition) {
            Ok(Answer::Hints(hints)) => hints,
            _ => Hints::default(),
        }
    }

    /// Has a collector thread call a hook. True if the requester may call it by itself instead.
    pub(super) fn ask_collector_for_hook(&self, task: Task, petition: &Petition) -> Result<bool, Missed> {
        match self.ask_collector(task, petition)? {
            Answer::Alone => Ok(true),
            Answer::Failed(reason) => Err(reason.into()),
            Answer::Hooked | Answer::Collected(_) | Answer::Hints(_) => Ok(false),
        }
    }

    /// Queues a job and waits for its answer, until there is no time left or nothing to wait for; a hook is waited for
    /// in any case, since it may share data with the thread that asked. A collection that was not waited for is
    /// cancelled if it has not begun, or waits for a foreign one, and lands; else it is abandoned, and lands when it
    /// ends.
    fn ask_collector(&self, task: Task, petition: &Petition) -> Result<Answer, Missed> {
        let job = Arc::new(Job::new(task.clone(), petition.clone()));
        self.queue(&job)?;
        let Ok(mut state) = self.lock() else { return Err(SkipReason::Forked.into()) };
        loop {
            if let Some(answer) = job.take_answer() {
                return Ok(answer);
            }
            let left = petition.deadline.saturating_duration_since(now());
            let missed = if petition.is_granted() && !matches!(task, Task::Hook { .. }) {
                Some(Missed::Granted)
            } else if self.is_closing() {
                Some(SkipReason::Finalizing.into())
            } else {
                left.is_zero().then_some(SkipReason::Timeout.into())
            };
            if let Some(missed) = missed {
                let abandoned = self.give_up(&mut state, &job, missed);
                drop(state);
                if abandoned {
                    debug!(%task, "goes on past the deadline of its request");
                }
                return Err(missed);
            }
            state = self.wait(state, left);
        }
    }

    /// Ends the waiting for a job. True if it goes on past the deadline.
    fn give_up(&self, state: &mut State, job: &Arc<Job>, missed: Missed) -> bool {
        state.jobs.retain(|queued| !Arc::ptr_eq(queued, job));
        let running = job.phase() == Phase::Running;
        job.set_phase(if running { Phase::Abandoned } else { Phase::Cancelled });
        let late = running && missed == Missed::Skipped(SkipReason::Timeout);
        match job.task {
            Task::Hook { .. } => {
                if running {
                    state.hooks.mark_overdue();
                }
                late
            }
            Task::Collect { generation, epoch } if !running || state.is_behind_foreign(epoch) => {
                state.land(epoch, generation, Err(missed));
                self.changed.notify_all();
                false
            }
            Task::Collect { epoch, .. } => {
                if late {
                    PressureCounters::add(&job.petition.counters.collectors_abandoned, 1);
                    state.mark_overdue(epoch);
                }
                late
            }
            Task::Hints(_) => false,
        }
    }

    /// Queues a job for a collector thread that is idle or will be unless it gets stuck, or starts a new one.
    fn queue(&self, job: &Arc<Job>) -> Result<(), SkipReason> {
        let Ok(mut state) = self.lock() else { return Err(SkipReason::Forked) };
        state.jobs.push_back(Arc::clone(job));
        if state.available_collectors() >= state.jobs.len() {
            self.work.notify_one();
            return Ok(());
        }
        state.starting_collectors += 1;
        drop(state);
        let Err(_) = self.start_collector() else { return Ok(()) };
        let Ok(mut state) = self.lock() else { return Err(SkipReason::Forked) };
        state.starting_collectors -= 1;
        if job.phase() != Phase::Queued {
            return Ok(()); // A collector that had become idle took it.
        }
        self.give_up(&mut state, job, SkipReason::Uninitialized.into());
        Err(SkipReason::Uninitialized)
    }

    fn start_collector(&self) -> std::io::Result<()> {
        let Some(gate) = self.me.upgrade() else { return Err(std::io::Error::other("the gate is gone")) };
        let builder = thread::Builder::new().name("flex-collector".into()).stack_size(8 << 20);
        with_signals_blocked(|| builder.spawn(move || gate.serve_jobs())).map(drop)
    }

    /// The life of a collector thread. Idle, it waits detached.
    fn serve_jobs(&self) {
        let proof = Unlocked::on_collector_thread();
        let me = catch_unwind(AssertUnwindSafe(|| self.reclaimer.new_thread(&proof)));
        let Ok(mut state) = self.lock() else { return };
        state.starting_collectors -= 1;
        let Ok(me) = me else {
            if state.available_collectors() < state.jobs.len()
                && let Some(job) = state.jobs.pop_front()
            {
                self.fail(&mut state, &job, SkipReason::Uninitialized);
            }
            return;
        };
        state.resting_collectors.push(me);
        while !self.is_closing() {
            let Some(job) = state.jobs.pop_front() else {
                state.idle_collectors += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle_collectors -= 1;
                continue;
            };
            job.set_phase(Phase::Attaching);
            state.attaching_collectors += 1;
            drop(state);
            let Ok(locked) = self.attach_and_serve(&proof, me, &job) else { return };
            state = locked;
        }
    }

    /// Serves one job, and answers it also when the reclaimer panics or can no longer attach anybody. Returns with
    /// the state locked: the thread is available from the answer on.
    fn attach_and_serve(
        &self,
        proof: &Unlocked<'_>,
        me: ThreadToken,
        job: &Job,
    ) -> Result<MutexGuard<'_, State>, Forked> {
        let stage = Cell::new(Stage::Attaching);
        let reason = if self.reclaimer.is_finalizing() {
            SkipReason::Finalizing
        } else {
            // The panic hook has reported a panic of the reclaimer.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                self.reclaimer.attached(proof, me, &mut || self.serve(proof, me, job, &stage));
            }));
            SkipReason::Uninitialized
        };
        let mut state = self.lock()?;
        match stage.get() {
            Stage::Attaching => state.attaching_collectors -= 1,
            Stage::Serving => {}
            Stage::Returning => state.returning_collectors -= 1,
        }
        if !state.resting_collectors.contains(&me) {
            state.resting_collectors.push(me);
        }
        self.fail(&mut state, job, reason);
        Ok(state)
    }

    /// Ends a job that nobody has answered.
    fn fail(&self, state: &mut State, job: &Job, reason: SkipReason) {
        if job.answer(Answer::Failed(reason)) {
            match job.task {
                Task::Collect { generation, epoch } => state.land(epoch, generation, Err(reason.into())),
                Task::Hook { .. } if job.phase() == Phase::Abandoned => state.hooks.end_run(),
                Task::Hook { .. } | Task::Hints(_) => {}
            }
            self.changed.notify_all();
        }
    }

    /// A collector thread is about to serve a job, perhaps for long. Those behind it need another.
    fn replace_collector<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        if state.available_collectors() >= state.jobs.len() {
            return;
        }
        state.starting_collectors += 1;
        drop(state);
        if self.start_collector().is_err()
            && let Ok(mut state) = self.lock()
        {
            // This one gets to them when it returns.
            state.starting_collectors -= 1;
        }
    }

    /// Answers one job, attached.
    fn serve(&self, proof: &Unlocked<'_>, me: ThreadToken, job: &Job, stage: &Cell<Stage>) {
        {
            let Ok(mut state) = self.lock() else { return };
            stage.set(Stage::Serving);
            state.attaching_collectors -= 1;
            state.resting_collectors.retain(|thread| *thread != me);
            if job.phase() == Phase::Cancelled {
                return;
            }
            job.set_phase(Phase::Running);
            self.replace_collector(state);
        }
        let answer = job.mask.during(|| self.answer(proof, me, job));
        if is_forked() {
            // This process is the child of a fork made in a finalizer; nothing above this frame is Python.
            self.reclaimer.end_forked_child();
        }
        let Ok(mut state) = self.lock() else { return };
        if let (Task::Hook { .. }, Phase::Abandoned) = (&job.task, job.phase()) {
            state.hooks.end_run();
        }
        if let Task::Collect { generation, epoch } = job.task {
            match answer {
                // Landed in one step with the thread being available: who waited for it may fly next.
                Answer::Collected(outcome) => state.land(epoch, generation, outcome),
                // Nobody is left to collect by itself.
                Answer::Alone if job.phase() == Phase::Abandoned => {
                    state.land(epoch, generation, Err(SkipReason::Timeout.into()));
                }
                _ => {}
            }
        }
        job.answer(answer);
        stage.set(Stage::Returning);
        state.returning_collectors += 1;
        self.changed.notify_all();
    }

    /// Whether nobody could hold the interpreter against the requester.
    fn is_alone(&self, proof: &Unlocked<'_>, me: ThreadToken, petition: &Petition) -> bool {
        let ignore = |thread| thread == me || self.is_resting(thread);
        self.reclaimer.is_alone(proof, &petition.entry, &ignore)
    }

    fn answer(&self, proof: &Unlocked<'_>, me: ThreadToken, job: &Job) -> Answer {
        let petition = &job.petition;
        match &job.task {
            Task::Hints(failed) => Answer::Hints(self.reclaimer.hints(proof, failed)),
            _ if self.is_alone(proof, me, petition) => Answer::Alone,
            Task::Hook { hook, event } => {
                hooks::call(proof, petition, &**hook, event);
                Answer::Hooked
            }
            Task::Collect { generation, epoch } => {
                Answer::Collected(self.run_collection(proof, petition, *generation, *epoch, true))
            }
        }
    }
}
