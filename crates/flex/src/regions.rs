//! Placing a request when that takes a region from the device.
//!
//! Devices may be slow, so a region is acquired with the mutex released, against a reservation in the arena.
//! Other requests that want the same region wait for it, bounded; they may be attached to an interpreter, since
//! the thread that talks to the device needs none.

use std::time::Duration;

use smallvec::SmallVec;
use tracing::debug;

use crate::address::VirtualAddress;
use crate::arena::trim::{HeldSpan, TrimCursor};
use crate::arena::{Chunks, RegionSlot, Request, Unplaced};
use crate::device::Device;
use crate::error::{FlexError, RegionSetupError};
use crate::fork::Forked;
use crate::history::{EventKind, EventRegion};
use crate::lock::{AllocatorGuard, Unlocked};
use crate::pressure::waiters::Ticket;
use crate::sync::now;
use crate::units::RegionId;

/// How long a request waits for a region that another thread is acquiring or releasing.
const REGION_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest step of that wait: waiting releases the mutex without a look at the pending list.
const REGION_STEP: Duration = Duration::from_millis(20);

/// So many batches of parked blocks are taken back by who does not suspend parking: other threads may park more all the
/// time. A request under pressure finds the rest.
pub(crate) const PARKED_BATCHES: u32 = 1024;

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
    /// A region that the device refuses is not asked for again on behalf of this request; `refusal` keeps why. What a
    /// registered request was granted meanwhile is taken first, so that it never holds two blocks.
    pub(crate) fn place(
        &mut self,
        placement: &mut Request,
        ticket: Option<Ticket>,
        refusal: &mut Option<FlexError>,
    ) -> Result<Chunks, Unserved> {
        let mut deadline = None;
        let mut parked_batches = PARKED_BATCHES;
        loop {
            let shared = self.shared();
            let state = self.state()?;
            shared.drain(state);
            if let Some(chunks) = ticket.and_then(|ticket| state.waiters.collect(ticket)) {
                return Ok(chunks);
            }
            match shared.place(state, placement) {
                Ok(chunks) => return Ok(chunks),
                Err(unplaced) if parked_batches > 0 && shared.take_back_parked(state) => {
                    if let Unplaced::NeedsRegion(slot) = unplaced {
                        state.arena.region_failed(slot); // Not asked for yet.
                    }
                    parked_batches -= 1;
                    self.unlocked(|_| ())?;
                }
                Err(Unplaced::NeedsRegion(slot)) => {
                    if let Err(error) = self.acquire_region(slot, placement.site)? {
                        placement.refused.push(slot);
                        refusal.get_or_insert(error);
                    }
                }
                Err(_) if !shared.pending.is_empty() => self.unlocked(|_| ())?,
                Err(Unplaced::Exhausted) => return Err(Unserved::Exhausted),
                Err(Unplaced::Impossible) => return Err(Unserved::Impossible),
                Err(Unplaced::RegionBusy) => {
                    if matches!(refusal, Some(FlexError::RegionSetup(RegionSetupError::Busy { .. }))) {
                        // It has waited for its region once.
                        return Err(Unserved::Exhausted);
                    }
                    let deadline = *deadline.get_or_insert_with(|| now() + REGION_TIMEOUT);
                    let left = deadline.saturating_duration_since(now());
                    if left.is_zero() {
                        *refusal = Some(RegionSetupError::Busy { waited: REGION_TIMEOUT }.into());
                        return Err(Unserved::Exhausted);
                    }
                    self.wait_for_region(left.min(REGION_STEP))?;
                }
            }
        }
    }

    /// Acquires a region that the arena has reserved for this thread, or says why the device refused it.
    fn acquire_region(&mut self, slot: RegionSlot, site: u32) -> Result<Result<(), FlexError>, Forked> {
        let state = self.state()?;
        let (size_bytes, domain, memory_type) = state.arena.region_to_acquire(slot);
        let coming = ComingRegion { guard: self, slot, site, size_bytes, region: None };
        let device = &coming.guard.shared().device;
        let acquire = |_: &Unlocked<'_>| {
            let device_name = device.name();
            device
                .acquire_region(size_bytes, domain, memory_type)
                .map(|region| (region, host_base(&**device, region)))
                .inspect(|(region, _)| debug!(device_name, %region, size_bytes, %domain, %memory_type, "region acquired"))
                .inspect_err(|error| debug!(device_name, %error, size_bytes, %domain, %memory_type, "region refused"))
        };
        match coming.guard.unlocked(acquire)? {
            Ok((region, host_base)) => {
                coming.arrive(region, host_base);
                Ok(Ok(()))
            }
            Err(source) => {
                Ok(Err(RegionSetupError::Refused { size_bytes, domain, memory_type, source }.into()))
            }
        }
    }

    /// Gives wholly free regions back to a device that can take them; returns their bytes.
    pub(crate) fn release_free_regions(&mut self) -> Result<u64, FlexError> {
        let device = &self.shared().device;
        let mut leaving =
            LeavingRegions { regions: self.state()?.arena.start_release_of_free_regions(), guard: self };
        let (mut returned_bytes, mut result) = (0, Ok(()));
        while let Some(&(slot, region)) = leaving.regions.last() {
            let release = |_: &Unlocked<'_>| {
                let device_name = device.name();
                let host_base = host_base(&**device, region);
                device
                    .release_region(region)
                    .map(|()| host_base)
                    .inspect(|_| debug!(device_name, %region, "region released"))
                    .inspect_err(|error| debug!(device_name, %region, %error, "region not released"))
            };
            let released = leaving.guard.unlocked(release)?;
            if let Ok(host_base) = released {
                let shared = leaving.guard.shared();
                let arena = &mut leaving.guard.state()?.arena;
                let size_bytes = arena.region_to_acquire(slot).0;
                returned_bytes += size_bytes;
                arena.region_released(slot);
                leaving.regions.pop();
                if shared.history.is_on() {
                    let region = EventRegion { region_id: region, host_base, size_bytes };
                    shared.history.record(EventKind::RegionReleased(region), 0);
                }
            } else {
                leaving.keep_last();
            }
            leaving.guard.shared().region_changed.notify_all();
            result = result.and(released.map(drop));
        }
        result?;
        Ok(returned_bytes)
    }
}

/// Regions on their way back to the device. Those that did not get there are in use again when this is dropped,
/// also on unwind.
struct LeavingRegions<'g, 'a> {
    guard: &'g mut AllocatorGuard<'a>,
    regions: SmallVec<[(RegionSlot, RegionId); 8]>,
}

impl LeavingRegions<'_, '_> {
    fn keep_last(&mut self) {
        let shared = self.guard.shared();
        let Ok(state) = self.guard.state() else { return self.regions.clear() };
        if let Some((slot, _)) = self.regions.pop() {
            state.arena.region_kept(slot);
            shared.serve(state);
        }
    }
}

impl Drop for LeavingRegions<'_, '_> {
    fn drop(&mut self) {
        while !self.regions.is_empty() {
            self.keep_last();
        }
        self.guard.shared().region_changed.notify_all();
    }
}

/// So many free blocks are held from other requests at first while the device drops their pages. Then twice as many
/// each time: finding where to go on walks the blocks of the region again.
const TRIM_BATCH: usize = 64;

/// The most that are held at once.
const TRIM_BATCH_MOST: usize = 1 << 14;

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
            let trim = |_: &Unlocked<'_>| {
                for span in held.spans.iter() {
                    device.trim(span.region_id, span.offset_bytes, span.size_bytes);
                }
            };
            held.guard.unlocked(trim)?;
            trimmed_bytes += held.spans.iter().map(|span| span.size_bytes).sum::<u64>();
            drop(held);
            let grown = (spans.capacity() * 2).min(TRIM_BATCH_MOST);
            self.unlocked(|_| spans.reserve_exact(grown))?;
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

/// A region on its way from the device: present when this is dropped if it arrived, else absent again, also on
/// unwind. Tells the threads that wait for it either way.
struct ComingRegion<'g, 'a> {
    guard: &'g mut AllocatorGuard<'a>,
    slot: RegionSlot,
    /// Where the request comes from that it is for.
    site: u32,
    size_bytes: u64,
    /// With the host address of its first byte.
    region: Option<(RegionId, u64)>,
}

impl ComingRegion<'_, '_> {
    fn arrive(mut self, region: RegionId, host_base: u64) {
        self.region = Some((region, host_base));
    }
}

impl Drop for ComingRegion<'_, '_> {
    fn drop(&mut self) {
        let shared = self.guard.shared();
        let Ok(state) = self.guard.state() else { return };
        match self.region {
            Some((region, host_base)) => {
                state.arena.region_acquired(self.slot, region);
                shared.parking.note_region(self.slot, region);
                if shared.history.is_on() {
                    let region = EventRegion { region_id: region, host_base, size_bytes: self.size_bytes };
                    let site = shared.history.shown(self.site);
                    shared.history.record(EventKind::RegionAcquired(region), site);
                }
            }
            None => state.arena.region_failed(self.slot),
        }
        shared.region_changed.notify_all();
    }
}

/// The host address of a region's first byte, for the history; 0 if there is none. Calls the device.
fn host_base(device: &dyn Device, region_id: RegionId) -> u64 {
    device.host_address(VirtualAddress { region_id, offset_bytes: 0 }).map_or(0, |address| address as u64)
}
