//! One pressure event from the failed search to its end. Lock: entered and left with the allocator mutex held.

use std::time::Instant;

use tracing::debug;

use super::collecting::InPressure;
use super::counters::PressureCounters;
use super::report::{ReclaimReport, SkipReason};
use super::request::PressureRequest;
use super::{MAX_ATTEMPTS, SharedCallback, Verdict};
use crate::arena::{Chunks, Figures, Request};
use crate::error::{FlexError, OutOfMemory};
use crate::fork::Forked;
use crate::history::{EventKind, History, PressureOutcome};
use crate::lock::AllocatorGuard;
use crate::sync::now;

/// What an event leaves for the time after the guard: dropping a replaced callback and logging may run foreign code.
#[derive(Default)]
pub(crate) struct Aftermath {
    callback: Option<SharedCallback>,
    /// `None` without an event, and in a forked child.
    report: Option<ReclaimReport>,
}

impl Aftermath {
    /// Logs the event, if there was one. No allocator mutex is held.
    pub(crate) fn log(&self, device: &str, requested_bytes: u64, rescued: bool) {
        if let Some(report) = &self.report {
            debug!(device, requested_bytes, rescued, ?report, "pressure event ended");
        }
    }
}

/// Runs the event of a request whose search has just failed.
pub(crate) fn exhausted(
    guard: &mut AllocatorGuard<'_>,
    placement: Request,
    refusal: Option<FlexError>,
    aftermath: &mut Aftermath,
) -> Result<Chunks, FlexError> {
    let state = guard.state()?;
    state.arena.count_retry();
    aftermath.callback.clone_from(&state.callback);
    let figures = state.arena.figures(&placement);
    let mut event = Event::begin(guard, PressureRequest::new(placement, refusal, figures));
    match &aftermath.callback {
        Some(callback) => event.call(callback)?,
        None => event.request.report.skipped = Some(SkipReason::Uninitialized),
    }
    event.end(&mut aftermath.report)
}

/// Counts an event once, and gives back what its request was granted, however it ends.
struct Event<'g, 'a> {
    guard: &'g mut AllocatorGuard<'a>,
    request: PressureRequest,
    began: Instant,
    /// Resets of the counters before it.
    resets: u64,
    rescued: bool,
}

impl<'g, 'a> Event<'g, 'a> {
    fn begin(guard: &'g mut AllocatorGuard<'a>, request: PressureRequest) -> Self {
        let resets = guard.counters().resets();
        PressureCounters::add(&guard.counters().events, 1);
        let history = guard.history();
        if history.is_on() {
            let began = EventKind::PressureBegan {
                requested_bytes: request.requested_bytes(),
                free_bytes: request.free_bytes(),
                largest_free_bytes: request.largest_free_bytes(),
            };
            history.record(began, history.shown(request.placement.site));
        }
        Event { guard, request, began: now(), resets, rescued: false }
    }

    /// Calls the callback until a search succeeds or it gives up.
    fn call(&mut self, callback: &SharedCallback) -> Result<(), Forked> {
        let Some(_in_pressure) = InPressure::begin() else {
            self.request.report.skipped = Some(SkipReason::Reentrant);
            return Ok(());
        };
        for attempt in 1..=MAX_ATTEMPTS {
            self.request.attempt = attempt;
            let verdict = callback.on_pressure(self.guard, &mut self.request);
            if self.guard.search(&mut self.request)? || verdict == Verdict::GiveUp {
                break;
            }
        }
        Ok(())
    }

    /// The memory, or the error with the figures of the search that has just failed. Where the device refused a
    /// region, that is the error.
    fn end(mut self, reported: &mut Option<ReclaimReport>) -> Result<Chunks, FlexError> {
        let served = self.guard.search(&mut self.request)?;
        *reported = Some(self.request.report.clone());
        if served && let Some(chunks) = self.request.granted.take() {
            self.rescued = true;
            return Ok(chunks);
        }
        let report = &mut self.request.report;
        if report.young_collections + report.full_collections > 0 {
            report.skipped = None;
        }
        match self.request.refusal.take() {
            Some(refusal) => Err(refusal),
            None => Err(out_of_memory(self.guard, &self.request, true)?),
        }
    }
}

impl Drop for Event<'_, '_> {
    fn drop(&mut self) {
        let counters = self.guard.counters();
        if counters.resets() != self.resets {
            PressureCounters::add(&counters.events, 1);
        }
        PressureCounters::add(if self.rescued { &counters.rescued } else { &counters.failed }, 1);
        if self.rescued && self.request.own_collections == 0 {
            PressureCounters::add(&counters.coalesced, 1);
        }
        let report = &self.request.report;
        if let Some(reason) = report.skipped
            && report.young_collections + report.full_collections == 0
        {
            counters.count_skip(reason);
        }
        let elapsed = now().saturating_duration_since(self.began);
        counters.count_request(elapsed, self.request.own_collections);
        let history = self.guard.history();
        if history.is_on() {
            let outcome = PressureOutcome::new(self.request.requested_bytes(), self.rescued, elapsed, report);
            history.record(EventKind::PressureEnded(outcome), history.shown(self.request.placement.site));
        }
        give_back(self.guard, &mut self.request);
    }
}

fn give_back(guard: &mut AllocatorGuard<'_>, request: &mut PressureRequest) {
    let shared = guard.shared();
    let Ok(state) = guard.state() else { return };
    let waiting = request.ticket.take().and_then(|ticket| state.waiters.unregister(ticket));
    let mut freed = false;
    for placed in waiting.iter().chain(&request.granted).flatten() {
        let released = shared.release(state, placed.handle);
        debug_assert!(released.is_ok(), "a granted block is live: {released:?}");
        freed = true;
    }
    request.granted = None;
    if freed {
        shared.serve(state);
    }
}

/// The error for a request that cannot be served, counted; figures and counters of one critical section.
pub(crate) fn out_of_memory(
    guard: &mut AllocatorGuard<'_>,
    request: &PressureRequest,
    possible: bool,
) -> Result<FlexError, Forked> {
    let state = guard.state()?;
    state.arena.count_out_of_memory();
    let figures = state.arena.figures(&request.placement);
    let limit_bytes = state.arena.limit_bytes(request.placement.memory_type);
    record_out_of_memory(guard.history(), request, &figures);
    Ok(FlexError::OutOfMemory(Box::new(OutOfMemory {
        requested_bytes: request.placement.requested_bytes,
        capacity_bytes: figures.capacity_bytes,
        free_bytes: figures.free_bytes,
        largest_free_bytes: figures.largest_free_bytes,
        largest_region_bytes: figures.largest_region_bytes,
        limit_bytes,
        domains: request.placement.domains.clone(),
        memory_type: request.placement.memory_type,
        possible,
        reclaim: request.report.clone(),
    })))
}

fn record_out_of_memory(history: &History, request: &PressureRequest, figures: &Figures) {
    if history.is_on() {
        let event = EventKind::OutOfMemory {
            requested_bytes: request.placement.requested_bytes,
            free_bytes: figures.free_bytes,
            largest_free_bytes: figures.largest_free_bytes,
        };
        history.record(event, history.shown(request.placement.site));
    }
}
