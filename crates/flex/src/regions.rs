//! Placing a request when that takes a region from the device.
//!
//! Devices may be slow, so a region is acquired with the mutex released, against a reservation in the arena.
//! Other requests that want the same region wait for it, bounded; they may be attached to an interpreter, since
//! the thread that talks to the device needs none.

use std::time::{Duration, Instant};

use crate::arena::{Chunks, RegionSlot, Request, Unplaced};
use crate::error::{DeviceError, FlexError, RegionSetupError};
use crate::fork::Forked;
use crate::lock::AllocatorGuard;

/// How long a request waits for a region that another thread is acquiring or releasing.
const REGION_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a request was not placed.
pub(crate) enum Unserved {
    /// No block fits now.
    Exhausted,
    /// No state of the device could serve it.
    Impossible,
    /// The device refused a region.
    Region(FlexError),
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
    pub(crate) fn place(&mut self, placement: &Request) -> Result<Chunks, Unserved> {
        let mut deadline = None;
        loop {
            let shared = self.shared();
            match shared.place(self.state()?, placement) {
                Ok(chunks) => return Ok(chunks),
                Err(Unplaced::Exhausted) => return Err(Unserved::Exhausted),
                Err(Unplaced::Impossible) => return Err(Unserved::Impossible),
                Err(Unplaced::NeedsRegion(slot)) => self.acquire_region(slot)?,
                Err(Unplaced::RegionBusy) => {
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + REGION_TIMEOUT);
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(Unserved::Region(FlexError::RegionSetup(RegionSetupError::Busy {
                            waited: REGION_TIMEOUT,
                        })));
                    }
                    self.wait_for_region(left)?;
                }
            }
        }
    }

    fn acquire_region(&mut self, slot: RegionSlot) -> Result<(), Unserved> {
        let state = self.state()?;
        state.arena.begin_acquire(slot);
        let (size_bytes, domain, memory_type) = state.arena.region_to_acquire(slot);
        let mut change = RegionChange { guard: self, undo: |arena| arena.region_failed(slot), done: false };
        let device = &change.guard.shared().device;
        let acquired = change.guard.unlocked(|_| device.acquire_region(size_bytes, domain, memory_type))?;
        match acquired {
            Ok(region) => {
                change.finish(|arena| arena.region_acquired(slot, region))?;
                Ok(())
            }
            Err(source) => Err(Unserved::Region(refused(size_bytes, source))),
        }
    }

    /// Gives wholly free regions back to a device that can take them; returns how many.
    pub(crate) fn release_free_regions(&mut self) -> Result<usize, FlexError> {
        let device = &self.shared().device;
        let mut released = 0;
        while let Some((slot, region)) = self.state()?.arena.begin_release_of_free_region() {
            let mut change = RegionChange { guard: self, undo: |arena| arena.region_kept(slot), done: false };
            change.guard.unlocked(|_| device.release_region(region))?.map_err(FlexError::Device)?;
            change.finish(|arena| arena.region_released(slot))?;
            released += 1;
        }
        Ok(released)
    }
}

fn refused(size_bytes: u64, source: DeviceError) -> FlexError {
    FlexError::RegionSetup(RegionSetupError::Refused { size_bytes, source })
}

/// A region between two phases; undone unless finished, also on unwind. Tells the waiting threads either way.
struct RegionChange<'g, 'a, U: FnMut(&mut crate::arena::Arena)> {
    guard: &'g mut AllocatorGuard<'a>,
    undo: U,
    done: bool,
}

impl<U: FnMut(&mut crate::arena::Arena)> RegionChange<'_, '_, U> {
    fn finish(mut self, change: impl FnOnce(&mut crate::arena::Arena)) -> Result<(), Forked> {
        change(&mut self.guard.state()?.arena);
        self.done = true;
        Ok(())
    }
}

impl<U: FnMut(&mut crate::arena::Arena)> Drop for RegionChange<'_, '_, U> {
    fn drop(&mut self) {
        let shared = self.guard.shared();
        let Ok(state) = self.guard.state() else { return };
        if !self.done {
            (self.undo)(&mut state.arena);
        }
        shared.region_changed.notify_all();
    }
}
