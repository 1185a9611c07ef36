//! The reclaim ladder: what is tried for one exhausted request, rung by rung, with a search after each.
//!
//! Rung 0, draining pending frees and refusing requests that no state could serve, is the allocator's. Then: one
//! collection at a time; young generations; full collections while they free something; user hooks and one more
//! collection; waiting for memory that others free; the error. Lock: called with the allocator mutex held, which every
//! rung releases.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::flight::{Missed, Turn};
use super::hooks::{HookRun, HookTurn};
use super::members::Requester;
use super::{CollectPolicy, FailedRequest, Gate, Generation, Petition, PolicySettings};
use crate::fork::Forked;
use crate::lock::AllocatorGuard;
use crate::pressure::collecting::{self, CollectionKind};
use crate::pressure::{MemoryPressureCallback, PressureRequest, SkipReason, Verdict};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{now, thread};

/// Full collections in a row that free no byte of the device before a request stops repeating them: other threads
/// may make garbage for ever.
const DRY_COLLECTIONS: u32 = 4;

/// How often a request starts over because collections freed memory that it did not get.
const ROUNDS: u32 = 64;

/// How long a request waits for a free that another thread has begun.
const FREE_IN_FLIGHT_WAIT: Duration = Duration::from_millis(1);

/// How long the interpreter may take to explain a failure: it looks through its objects for what holds memory, and on a
/// busy machine attaching alone takes a while.
const HINTS_TIMEOUT: Duration = Duration::from_secs(3);

/// The same after a request that has waited for the interpreter in vain.
const LATE_HINTS_TIMEOUT: Duration = Duration::from_millis(100);

/// A timeout that no request outlives.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// The ladder as a memory-pressure callback: one call runs all rungs.
pub(super) struct Ladder {
    gate: Arc<Gate>,
}

impl Ladder {
    pub(super) fn new(gate: Arc<Gate>) -> Self {
        Ladder { gate }
    }
}

impl MemoryPressureCallback for Ladder {
    fn on_pressure(&self, guard: &mut AllocatorGuard<'_>, request: &mut PressureRequest) -> Verdict {
        // In a forked child the allocator answers for itself.
        let _ = Climb::start(&self.gate, guard, request).and_then(|mut climb| {
            climb.run(guard, request)?;
            if climb.petition.interrupted.load(Ordering::SeqCst) {
                guard.unlocked(|_| self.gate.reclaimer.raise_interrupt())?;
            }
            Ok(())
        });
        Verdict::GiveUp
    }
}

/// One request on its way up.
struct Climb<'a> {
    gate: &'a Gate,
    policy: PolicySettings,
    petition: Petition,
    /// Until the request registers.
    waker: Option<Waker>,
    /// A flight with a later epoch began after this request had failed.
    since_epoch: u64,
    reclaimed_at_start: u64,
    freed_at_start: u64,
}

/// What a collection meant for the request.
enum Step {
    /// It counts as this request's.
    Counted { objects: u64, freed_bytes: u64 },
    /// It began too early to count, or was a young one.
    Shared,
    /// None can run for this request.
    Skipped,
}

impl<'a> Climb<'a> {
    fn start(
        gate: &'a Gate,
        guard: &mut AllocatorGuard<'_>,
        request: &PressureRequest,
    ) -> Result<Self, Forked> {
        let requester = Requester::new(guard, request);
        let (counters, history) = (Arc::clone(guard.counters()), Arc::clone(guard.history()));
        let (reclaimed_at_start, freed_at_start) = (counters.reclaimed(), counters.collection_freed());
        let policy = gate.policy();
        let deadline = deadline_in(policy.timeout);
        let (entry, since_epoch) = guard.unlocked(|_| (gate.reclaimer.entry(), gate.epoch()))?;
        let respect_disable = policy.collect == CollectPolicy::RespectDisable;
        let grant = gate.grant();
        let waker = Some(Waker::from(Arc::clone(&grant)));
        let interrupted = Arc::new(AtomicBool::new(false));
        let petition =
            Petition { entry, requester, deadline, respect_disable, counters, history, grant, interrupted };
        Ok(Climb { gate, policy, petition, waker, since_epoch, reclaimed_at_start, freed_at_start })
    }

    fn run(&mut self, guard: &mut AllocatorGuard<'_>, request: &mut PressureRequest) -> Result<(), Forked> {
        match self.why_not() {
            Some(reason) => skip(request, reason),
            None => self.collect(guard, request)?,
        }
        if request.report.skipped == Some(SkipReason::Finalizing) {
            // Waking a daemon thread into a dying interpreter ends the process; see the reclaimer.
            return guard.unlocked(|_| {
                self.gate.reclaimer.hold_at_exit(&self.petition.entry, self.petition.deadline)
            });
        }
        if !guard.search(request)? && self.may_run_hooks(request) {
            self.run_hooks(guard, request)?;
        }
        if !guard.search(request)? && guard.frees_in_flight() {
            guard.unlocked(|proof| {
                self.gate.wait_detached(proof, &self.petition, &mut || thread::sleep(FREE_IN_FLIGHT_WAIT));
            })?;
        }
        // Inside a collection the answer must come at once, and the interpreter may be waiting for this thread.
        let may_ask = self.petition.entry.unavailable.is_none()
            && request.report.skipped != Some(SkipReason::Reentrant);
        if !guard.search(request)? && may_ask {
            let timeout = if request.report.timed_out { LATE_HINTS_TIMEOUT } else { HINTS_TIMEOUT };
            let petition = Petition { deadline: now() + timeout, ..self.petition.clone() };
            let failed = self.failed(guard, request, petition.deadline);
            request.report.hints = guard.unlocked(|proof| self.gate.hints(proof, &petition, failed))?;
        }
        request.report.reclaimed_bytes = self.petition.counters.reclaimed() - self.reclaimed_at_start;
        Ok(())
    }

    /// What the interpreter is told about the request when it fails.
    fn failed(
        &self,
        guard: &AllocatorGuard<'_>,
        request: &PressureRequest,
        deadline: Instant,
    ) -> FailedRequest {
        let report = &request.report;
        FailedRequest {
            thread_ident: self.petition.entry.thread_ident,
            device: guard.shared().ordinal,
            may_have_garbage: report.full_collections == 0 && !report.timed_out,
            deadline,
        }
    }

    /// Hooks run under every policy, but not inside a collection or for another interpreter's thread.
    fn may_run_hooks(&self, request: &PressureRequest) -> bool {
        self.petition.entry.unavailable.is_none() && request.report.skipped != Some(SkipReason::Reentrant)
    }

    /// Calls the hooks, or lets another request call them; then collects once more, since what a hook dropped may be
    /// cyclic. (Without a GIL it may also wait for a collection to count the references of the thread that made it.)
    fn run_hooks(
        &mut self,
        guard: &mut AllocatorGuard<'_>,
        request: &mut PressureRequest,
    ) -> Result<(), Forked> {
        let called = match guard.unlocked(|proof| self.gate.enter_hooks(proof, &self.petition))? {
            HookTurn::Nothing => false,
            HookTurn::Shared => true,
            HookTurn::Own(run) => self.call_hooks(guard, request, run)?,
        };
        if !called || self.why_not().is_some() || self.petition.is_late() {
            return Ok(());
        }
        // One that is running may have begun before the cache was dropped.
        self.since_epoch = guard.unlocked(|_| self.gate.epoch())?;
        loop {
            if guard.search(request)? || !matches!(self.step(guard, request, Generation::Full)?, Step::Shared)
            {
                return Ok(());
            }
        }
    }

    /// Calls the hooks until a search succeeds; false if there was none to call.
    fn call_hooks(
        &mut self,
        guard: &mut AllocatorGuard<'_>,
        request: &mut PressureRequest,
        run: HookRun<'_>,
    ) -> Result<bool, Forked> {
        let (mut last, mut attempt) = (None, 0);
        while let Some((rank, hook)) = guard.unlocked(|_| self.gate.next_hook(&run, last))? {
            last = Some(rank);
            attempt += 1;
            let event = guard.hook_event(request, attempt)?;
            let called = guard.unlocked(|proof| self.gate.run_hook(proof, &self.petition, hook, event))?;
            if guard.search(request)? {
                break;
            }
            request.report.hooks_timed_out |= self.petition.is_late();
            if called.is_err() || self.petition.is_late() {
                break;
            }
        }
        guard.unlocked(|_| drop(run))?;
        Ok(attempt > 0)
    }

    /// Why this request may not collect, known before trying.
    fn why_not(&self) -> Option<SkipReason> {
        if self.policy.collect == CollectPolicy::Off {
            Some(SkipReason::Policy)
        } else if collecting::kind() == Some(CollectionKind::Gate) {
            Some(SkipReason::Reentrant)
        } else if self.gate.is_closing() {
            Some(SkipReason::Finalizing)
        } else {
            self.petition.entry.unavailable
        }
    }

    /// Young, then full collections, until a search succeeds or nothing more is to be hoped for.
    fn collect(
        &mut self,
        guard: &mut AllocatorGuard<'_>,
        request: &mut PressureRequest,
    ) -> Result<(), Forked> {
        if self.policy.escalate && self.gate.reclaimer.young_is_cheap() {
            let step = self.step(guard, request, Generation::Young)?;
            if guard.search(request)? || matches!(step, Step::Skipped) {
                return Ok(());
            }
        }
        let mut freed_before = self.freed_at_start;
        for _ in 0..ROUNDS {
            if let Full::Done = self.collect_full(guard, request)? {
                return Ok(());
            }
            // The memory that a collection freed, ours or a foreign one, may have gone to others: it was there.
            let freed = self.petition.counters.collection_freed();
            if freed == freed_before {
                return Ok(());
            }
            freed_before = freed;
            if self.petition.is_late() {
                request.report.timed_out = true;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Full collections, repeated while they find garbage: it comes in waves.
    fn collect_full(
        &mut self,
        guard: &mut AllocatorGuard<'_>,
        request: &mut PressureRequest,
    ) -> Result<Full, Forked> {
        let mut dry = 0;
        loop {
            let step = self.step(guard, request, Generation::Full)?;
            if guard.search(request)? {
                return Ok(Full::Done);
            }
            guard.register(request, self.waker.take())?;
            match step {
                Step::Skipped => return Ok(Full::Done),
                Step::Shared => {}
                Step::Counted { objects, freed_bytes } => {
                    dry = if freed_bytes > 0 { 0 } else { dry + 1 };
                    if objects == 0 || dry == DRY_COLLECTIONS {
                        return Ok(Full::Fruitless);
                    }
                }
            }
            if self.petition.is_late() {
                request.report.timed_out = true;
                return Ok(Full::Done);
            }
        }
    }

    /// One collection, own or shared.
    fn step(
        &mut self,
        guard: &mut AllocatorGuard<'_>,
        request: &mut PressureRequest,
        generation: Generation,
    ) -> Result<Step, Forked> {
        let freed_before = self.petition.counters.collection_freed();
        let turn = guard.unlocked(|proof| self.gate.collect(proof, &self.petition, generation))?;
        let freed_bytes = self.petition.counters.collection_freed() - freed_before;
        let (collected, own) = match turn {
            Turn::Own(Ok(collected)) => (collected, true),
            Turn::Shared(Some(landing)) => match landing.outcome {
                Ok(collected)
                    if landing.epoch > self.since_epoch && landing.generation == Generation::Full =>
                {
                    self.since_epoch = landing.epoch;
                    (collected, false)
                }
                _ => return Ok(self.unshared(request)),
            },
            Turn::Own(Err(Missed::Skipped(reason))) => {
                skip(request, reason);
                return Ok(Step::Skipped);
            }
            Turn::Own(Err(Missed::Granted)) | Turn::Shared(None) => return Ok(self.unshared(request)),
        };
        // It began after this request had failed, so this thread is in the middle of none: a mark would be stale.
        collecting::end_foreign();
        count(request, if own { generation } else { Generation::Full }, own, collected.elapsed);
        Ok(Step::Counted { objects: collected.objects, freed_bytes })
    }

    /// Somebody else's collection did not count: go on, unless there is no time left.
    fn unshared(&self, request: &mut PressureRequest) -> Step {
        let reason = if self.gate.is_closing() {
            SkipReason::Finalizing
        } else if self.petition.is_late() {
            SkipReason::Timeout
        } else {
            return Step::Shared;
        };
        if !self.petition.is_granted() {
            skip(request, reason);
        }
        Step::Skipped
    }
}

/// How a series of full collections ended without success.
enum Full {
    /// Served, out of time, or unable to collect.
    Done,
    /// The last one found nothing more.
    Fruitless,
}

/// A far future where the clock has no room for the timeout.
fn deadline_in(timeout: Duration) -> Instant {
    let now = now();
    now.checked_add(timeout).unwrap_or_else(|| now + FOR_EVER)
}

fn skip(request: &mut PressureRequest, reason: SkipReason) {
    request.report.skipped.get_or_insert(reason);
    request.report.timed_out |= reason == SkipReason::Timeout;
}

fn count(request: &mut PressureRequest, generation: Generation, own: bool, elapsed: Duration) {
    request.own_collections += u32::from(own);
    request.report.collection_time += elapsed;
    match generation {
        Generation::Young => request.report.young_collections += 1,
        Generation::Full => request.report.full_collections += 1,
    }
}
