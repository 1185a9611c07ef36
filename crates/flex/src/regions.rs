//! Placing a request when that takes a region from the device.
//!
//! Devices may be slow, so a region is acquired with the mutex released, against a reservation in the arena.
//! Other requests that want the same region wait for it, bounded; they may be attached to an interpreter, since
//! the thread that talks to the device needs none.

use std::time::{Duration, Instant};

use crate::arena::trim::{HeldSpan, TrimCursor};
use crate::arena::{Arena, Chunks, RegionSlot, Request, Unplaced};
use crate::error::{FlexError, RegionSetupError};
use crate::fork::Forked;
use crate::lock::{AllocatorGuard, Unlocked};

/// How long a request waits for a region that another thread is acquiring or releasing.
const REGION_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a request was not placed.
pub(crate) enum Unserved {
    /// No block fits now.
    Exhausted,
    /// No state of the device could serve it.
    Impossible,
    /// The process is a forked child.
    Forked,
}

impl From<Forked> for Unserved {
    fn from(_: Forked) -> Self {
        Unserved::Forked
    }
}

impl AllocatorGuard<'_> {
    /// Places a request, acquiring regions as needed. The mutex may be released and locked again in between.
    ///
    /// A region that the device refuses is not asked for again on behalf of this request; `refusal` keeps why.
    pub(crate) fn place(
        &mut self,
        placement: &mut Request,
        refusal: &mut Option<FlexError>,
    ) -> Result<Chunks, Unserved> {
        let mut deadline = None;
        loop {
            let shared = self.shared();
            match shared.place(self.state()?, placement) {
                Ok(chunks) => return Ok(chunks),
                Err(Unplaced::Exhausted) => return Err(Unserved::Exhausted),
                Err(Unplaced::Impossible) => return Err(Unserved::Impossible),
                Err(Unplaced::NeedsRegion(slot)) => {
                    if let Err(error) = self.acquire_region(slot)? {
                        placement.refused.push(slot);
                        refusal.get_or_insert(error);
                    }
                }
                Err(Unplaced::RegionBusy) => {
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + REGION_TIMEOUT);
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        refusal.get_or_insert(RegionSetupError::Busy { waited: REGION_TIMEOUT }.into());
                        return Err(Unserved::Exhausted);
                    }
                    self.wait_for_region(left)?;
                }
            }
        }
    }

    /// Acquires a region that the arena has reserved for this thread, or says why the device refused it.
    fn acquire_region(&mut self, slot: RegionSlot) -> Result<Result<(), FlexError>, Forked> {
        let state = self.state()?;
        let (size_bytes, domain, memory_type) = state.arena.region_to_acquire(slot);
        let change = RegionChange { guard: self, undo: |arena| arena.region_failed(slot), done: false };
        let device = &change.guard.shared().device;
        let acquired = change.guard.unlocked(|_| device.acquire_region(size_bytes, domain, memory_type))?;
        match acquired {
            Ok(region) => change.finish(|arena| arena.region_acquired(slot, region)).map(Ok),
            Err(source) => {
                Ok(Err(RegionSetupError::Refused { size_bytes, domain, memory_type, source }.into()))
            }
        }
    }

    /// Gives wholly free regions back to a device that can take them; returns their bytes.
    pub(crate) fn release_free_regions(&mut self) -> Result<u64, FlexError> {
        let device = &self.shared().device;
        let leaving = self.state()?.arena.start_release_of_free_regions();
        let (mut returned_bytes, mut result) = (0, Ok(()));
        for (slot, region) in leaving {
            let (size_bytes, ..) = self.state()?.arena.region_to_acquire(slot);
            let change = RegionChange { guard: self, undo: |arena| arena.region_kept(slot), done: false };
            match change.guard.unlocked(|_| device.release_region(region))? {
                Ok(()) => change.finish(|arena| arena.region_released(slot))?,
                Err(error) => {
                    result = Err(FlexError::Device(error));
                    continue;
                }
            }
            returned_bytes += size_bytes;
        }
        result.map(|()| returned_bytes)
    }
}

/// At most this many free blocks are held from other requests while the device drops their pages.
const TRIM_BATCH: usize = 64;

/// Blocks smaller than a page have no page to give back.
const TRIM_MINIMUM_BYTES: u64 = 4096;

impl AllocatorGuard<'_> {
    /// Has the device drop the pages of free blocks; returns the bytes in them.
    pub(crate) fn trim_free_blocks(&mut self) -> Result<u64, Forked> {
        let device = &self.shared().device;
        let mut cursor = TrimCursor::default();
        let mut spans = Vec::with_capacity(TRIM_BATCH);
        let mut trimmed_bytes = 0;
        loop {
            self.state()?.arena.hold_free_spans(&mut cursor, TRIM_MINIMUM_BYTES, &mut spans);
            if spans.is_empty() {
                return Ok(trimmed_bytes);
            }
            let held = HeldSpans { guard: self, spans: &mut spans };
            for span in held.spans.iter() {
                let trim = |_: &Unlocked<'_>| device.trim(span.region_id, span.offset_bytes, span.size_bytes);
                held.guard.unlocked(trim)?;
                trimmed_bytes += span.size_bytes;
            }
        }
    }
}

/// Free blocks out of everybody's reach, returned when dropped.
struct HeldSpans<'g, 'a> {
    guard: &'g mut AllocatorGuard<'a>,
    spans: &'g mut Vec<HeldSpan>,
}

impl Drop for HeldSpans<'_, '_> {
    fn drop(&mut self) {
        let shared = self.guard.shared();
        let Ok(state) = self.guard.state() else { return };
        for span in self.spans.drain(..) {
            state.arena.return_held_span(span);
        }
        shared.serve(state);
        shared.region_changed.notify_all();
    }
}

/// A region between two phases; undone unless finished, also on unwind. Tells the waiting threads either way.
struct RegionChange<'g, 'a, U: FnMut(&mut Arena)> {
    guard: &'g mut AllocatorGuard<'a>,
    undo: U,
    done: bool,
}

impl<U: FnMut(&mut Arena)> RegionChange<'_, '_, U> {
    fn finish(mut self, change: impl FnOnce(&mut Arena)) -> Result<(), Forked> {
        change(&mut self.guard.state()?.arena);
        self.done = true;
        Ok(())
    }
}

impl<U: FnMut(&mut Arena)> Drop for RegionChange<'_, '_, U> {
    fn drop(&mut self) {
        let shared = self.guard.shared();
        let Ok(state) = self.guard.state() else { return };
        if !self.done {
            (self.undo)(&mut state.arena);
        }
        shared.region_changed.notify_all();
    }
}
