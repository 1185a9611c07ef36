//! [`FlexAllocator`]: the public face of one device's memory.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

use crate::address::{Chunk, VirtualAddress};
use crate::arena::snapshot::RegionSnapshot;
use crate::arena::validate::Violation;
use crate::arena::{Arena, BlockHandle, Chunks, Placed, RegionOrder, Request};
use crate::composite::CompositeAddress;
use crate::device::Device;
use crate::directive::{AllocationDirective, MemoryType};
use crate::error::FlexError;
use crate::fork::is_forked;
use crate::history::{EventKind, HistoryOptions, RecordedEvents};
use crate::lock::AllocatorGuard;
use crate::magazines::parking::{ParkingRules, Suspension};
use crate::pending::PendingFrees;
use crate::pressure::waiters::Waiters;
use crate::pressure::{
    self, Aftermath, PressureCounters, PressureRequest, PressureStatistics, SharedCallback,
};
use crate::regions::Unserved;
use crate::shared::{POISON_FRESH, Shared, State, new_id};
use crate::statistics::Statistics;
use crate::sync::atomic::AtomicUsize;
use crate::sync::{Condvar, Mutex};
use crate::topology::Topology;

/// How an allocator is set up.
#[derive(Debug, Clone, Copy)]
pub struct AllocatorOptions {
    /// Which region a request tries first.
    pub region_order: RegionOrder,
    /// Fill fresh and freed blocks with a pattern, to make use of unset or freed memory visible. Slow.
    pub poison: bool,
    /// Which device of the process it manages; told to user hooks.
    pub ordinal: u32,
    /// Threads keep small blocks that they free for their own next requests. Such memory counts as free, and is taken
    /// back before a request fails. Off while `poison` is on or a limit is set.
    pub magazines: bool,
}

impl Default for AllocatorOptions {
    fn default() -> Self {
        AllocatorOptions { region_order: RegionOrder::default(), poison: false, ordinal: 0, magazines: true }
    }
}

/// An allocator of one device's memory. A handle: clones share the allocator.
#[derive(Clone)]
pub struct FlexAllocator {
    shared: Arc<Shared>,
}

impl FlexAllocator {
    /// Makes an allocator for the regions of `topology` on `device`. Regions are acquired when first needed.
    ///
    /// # Errors
    /// None today: a topology that exists can be managed.
    pub fn new(
        device: Arc<dyn Device>,
        topology: &Topology,
        options: AllocatorOptions,
    ) -> Result<Self, FlexError> {
        let arena = Arena::new(topology, options.region_order);
        let state = State { arena, waiters: Waiters::default(), callback: None, magazines: Vec::new() };
        let parking = ParkingRules::new(topology, options.magazines && !options.poison);
        Ok(FlexAllocator {
            shared: Arc::new_cyclic(|this| Shared {
                device,
                mutex: Mutex::new(state),
                region_changed: Condvar::new(),
                pending: PendingFrees::new(),
                parking,
                frees_in_flight: AtomicUsize::new(0),
                counters: Arc::new(PressureCounters::default()),
                history: Arc::default(),
                poison: options.poison,
                ordinal: options.ordinal,
                id: new_id(),
                this: Weak::clone(this),
            }),
        })
    }

    /// Allocates at least `bytes` bytes (rounded up to 128 per chunk).
    ///
    /// If the device is exhausted, the memory-pressure callback is called, which may release the mutex, wait and
    /// run foreign code on this thread. The caller must hold no lock that such code could want.
    ///
    /// # Errors
    /// - [`FlexError::InvalidSize`] for 0 bytes and sizes that overflow;
    /// - [`FlexError::UnknownDomain`] for a domain the device does not have;
    /// - [`FlexError::OutOfMemory`], with figures and what was tried;
    /// - [`FlexError::RegionSetup`] if the device refuses a region;
    /// - [`FlexError::Device`] if fresh blocks are poisoned and the device fails at it;
    /// - [`FlexError::Forked`] in a forked child.
    pub fn allocate(
        &self,
        bytes: u64,
        directive: &AllocationDirective,
    ) -> Result<CompositeAddress, FlexError> {
        let chunks = match self.place_quickly(bytes, directive) {
            Some(placed) => {
                self.shared.note_allocation(&placed, bytes);
                Chunks::from_elem(placed, 1)
            }
            None => self.place(bytes, directive)?,
        };
        Ok(CompositeAddress::new(Arc::clone(&self.shared), chunks, bytes))
    }

    /// Allocates one contiguous block for a foreign owner, who frees it with [`free_block`](Self::free_block).
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), and [`FlexError::InvalidPlacement`] for an interleaved directive.
    pub fn allocate_block(
        &self,
        bytes: u64,
        directive: &AllocationDirective,
    ) -> Result<(BlockHandle, Chunk), FlexError> {
        if let Some(placed) = self.place_quickly(bytes, directive) {
            self.shared.note_allocation(&placed, bytes);
            return Ok((placed.handle, placed.chunk));
        }
        directive.require_contiguous()?;
        let chunks = self.place(bytes, directive)?;
        let [placed] = chunks.as_slice() else { unreachable!("a bound request has one chunk") };
        Ok((placed.handle, placed.chunk))
    }

    /// Frees a block by its handle, on any thread, without ever blocking.
    ///
    /// # Errors
    /// [`FlexError::UnknownAllocation`] if the handle is stale; nothing changes then.
    pub fn free_block(&self, handle: BlockHandle) -> Result<(), FlexError> {
        if self.shared.poison && !is_forked() {
            let chunk = self.shared.lookup(handle);
            let unknown = FlexError::UnknownAllocation { index: handle.index, generation: handle.generation };
            return self.shared.free_chunk(Placed { handle, chunk: chunk.ok_or(unknown)? });
        }
        self.shared.free(handle)
    }

    /// The rounded size of a live block, without locking; 0 for a handle never handed out.
    pub fn block_size_bytes(&self, handle: BlockHandle) -> u64 {
        self.shared.pending.record(handle.index).map_or(0, |record| record.size_bytes())
    }

    /// Where a live block was allocated, without locking; 0 if that is not known.
    pub fn block_site(&self, handle: BlockHandle) -> u32 {
        self.shared.history.note(handle).site
    }

    /// The chunk of a live block; `None` if the handle is stale.
    ///
    /// # Errors
    /// [`FlexError::Forked`] in a forked child.
    pub fn block(&self, handle: BlockHandle) -> Result<Option<Chunk>, FlexError> {
        if is_forked() {
            return Err(FlexError::Forked);
        }
        Ok(self.shared.lookup(handle))
    }

    /// Whether a host address lies in an acquired region of a host-addressable device.
    pub fn holds_host_address(&self, address: usize) -> bool {
        let Ok(regions) = self.lock().and_then(|mut guard| Ok(guard.state()?.arena.present_regions())) else {
            return false;
        };
        regions.iter().any(|&(region_id, size_bytes)| {
            let base = self.device().host_address(VirtualAddress { region_id, offset_bytes: 0 });
            base.and_then(|base| address.checked_sub(base)).is_some_and(|offset| (offset as u64) < size_bytes)
        })
    }

    /// The host address of a region's first byte, on a host-addressable device.
    pub fn host_base(&self, region: &RegionSnapshot) -> Option<usize> {
        self.device().host_address(VirtualAddress { region_id: region.region_id, offset_bytes: 0 })
    }

    /// Runs `body` with the mutex held. For tests of what others do meanwhile; `body` must not use the allocator.
    ///
    /// # Errors
    /// [`FlexError::Forked`] in a forked child.
    #[doc(hidden)]
    pub fn while_locked<R>(&self, body: impl FnOnce() -> R) -> Result<R, FlexError> {
        let _guard = self.lock()?;
        Ok(body())
    }

    /// How many requests are registered for memory. For tests that end with nothing left behind.
    ///
    /// # Errors
    /// [`FlexError::Forked`] in a forked child.
    #[doc(hidden)]
    pub fn registered_requests(&self) -> Result<usize, FlexError> {
        Ok(self.lock()?.state()?.waiters.count())
    }

    /// Whether frees are pending. For tests of who drains them, since nearly every look drains.
    #[doc(hidden)]
    pub fn has_pending_frees(&self) -> bool {
        !self.shared.pending.is_empty()
    }

    /// Replaces the memory-pressure callback and returns the previous one. Safe at any time: a callback that is
    /// running is not interrupted.
    ///
    /// # Errors
    /// [`FlexError::Forked`] in a forked child.
    pub fn set_memory_pressure_callback(
        &self,
        callback: Option<SharedCallback>,
    ) -> Result<Option<SharedCallback>, FlexError> {
        self.exchange_memory_pressure_callback(callback, |previous| previous)
    }

    /// As [`set_memory_pressure_callback`](Self::set_memory_pressure_callback), for a new callback that looks for the
    /// previous one: `keep` puts that where it looks, with the mutex held, so before its first call. It must do no
    /// more than that: nothing that waits, runs foreign code or uses the allocator.
    ///
    /// # Errors
    /// [`FlexError::Forked`] in a forked child; `keep` is not called then.
    pub fn exchange_memory_pressure_callback<R>(
        &self,
        callback: Option<SharedCallback>,
        keep: impl FnOnce(Option<SharedCallback>) -> R,
    ) -> Result<R, FlexError> {
        let mut guard = self.lock()?;
        Ok(keep(std::mem::replace(&mut guard.state()?.callback, callback)))
    }

    /// One consistent snapshot of the statistics; memory whose free is pending is freed first.
    ///
    /// # Errors
    /// [`FlexError::Forked`] in a forked child.
    pub fn statistics(&self) -> Result<Statistics, FlexError> {
        self.with_drained(|state| state.arena.statistics())
    }

    /// The pressure statistics.
    pub fn pressure_statistics(&self) -> PressureStatistics {
        self.shared.counters.snapshot()
    }

    /// Sets the pressure statistics to 0.
    pub fn reset_pressure_statistics(&self) {
        self.shared.counters.reset();
    }

    /// Sets every peak to the current figure.
    ///
    /// # Errors
    /// [`FlexError::Forked`] in a forked child.
    pub fn reset_peak_statistics(&self) -> Result<(), FlexError> {
        self.with_drained(|state| state.arena.reset_peak())
    }

    /// Sets the accumulated figures to 0: allocated, freed, and the counts of retries and failures.
    ///
    /// # Errors
    /// [`FlexError::Forked`] in a forked child.
    pub fn reset_accumulated_statistics(&self) -> Result<(), FlexError> {
        self.with_drained(|state| state.arena.reset_accumulated())
    }

    /// Caps the bytes of tensor memory that may be allocated at once; `None` lifts the cap.
    ///
    /// # Errors
    /// [`FlexError::Forked`] in a forked child.
    pub fn set_limit_bytes(&self, limit: Option<u64>) -> Result<(), FlexError> {
        let parking = &self.shared.parking;
        // For as long as there is a limit: it is the arena that keeps it.
        let _suspension = Suspension::begin(&self.shared);
        self.with_drained(|state| {
            match (state.arena.limit_bytes(MemoryType::Tensor), limit) {
                (None, Some(_)) => parking.suspend_too(),
                (Some(_), None) => parking.resume(),
                _ => {}
            }
            state.arena.set_limit_bytes(limit);
            self.shared.serve(state);
        })
    }

    /// Every acquired region with its blocks. Walks all blocks under the mutex: for looking, not for hot paths.
    ///
    /// # Errors
    /// [`FlexError::Forked`] in a forked child.
    pub fn regions(&self) -> Result<Vec<RegionSnapshot>, FlexError> {
        self.with_drained(|state| state.arena.snapshot_with(|index| self.shared.facts_of(index)))
    }

    /// As [`regions`](Self::regions), and the history has an event that says when.
    ///
    /// # Errors
    /// [`FlexError::Forked`] in a forked child.
    pub fn snapshot(&self) -> Result<Vec<RegionSnapshot>, FlexError> {
        Ok(self.snapshot_blocks()?.0)
    }

    /// As [`snapshot`](Self::snapshot), with the recorded events that led there: those before the blocks were copied.
    /// The events of other threads that allocate and free meanwhile may be some ahead of the blocks, or behind.
    ///
    /// # Errors
    /// [`FlexError::Forked`] in a forked child.
    pub fn snapshot_with_events(&self) -> Result<(Vec<RegionSnapshot>, RecordedEvents), FlexError> {
        let (regions, taken) = self.snapshot_blocks()?;
        Ok((regions, self.shared.history.read(0, taken.start)))
    }

    /// As [`snapshot`](Self::snapshot), and the number from which events go on. If other threads allocate meanwhile,
    /// the blocks may be a few events ahead of that, or behind.
    ///
    /// # Errors
    /// [`FlexError::Forked`] in a forked child.
    pub fn snapshot_with_position(&self) -> Result<(Vec<RegionSnapshot>, u64), FlexError> {
        let (regions, taken) = self.snapshot_blocks()?;
        Ok((regions, taken.end))
    }

    /// The blocks, and the number of the event that says when they were copied; none, but where it would be, if such
    /// events are not recorded.
    fn snapshot_blocks(&self) -> Result<(Vec<RegionSnapshot>, Range<u64>), FlexError> {
        self.with_drained(|state| {
            let history = &self.shared.history;
            let next = history.next_number();
            let taken = history.is_on().then(|| history.record(EventKind::SnapshotTaken, 0)).flatten();
            (
                state.arena.snapshot_with(|index| self.shared.facts_of(index)),
                taken.map_or(next..next, |taken| taken..taken + 1),
            )
        })
    }

    /// Begins to record what happens, with new options if it does already; `None` ends it and forgets the events. The
    /// cost while it is on is that of two entries in a ring for each pair of an allocation and a free, and of what the
    /// provider of sites does.
    ///
    /// # Errors
    /// [`FlexError::HistoryTooLarge`] if the host has no memory for it, [`FlexError::Forked`] in a forked child.
    pub fn record_history(&self, options: Option<HistoryOptions>) -> Result<(), FlexError> {
        self.shared.history.set(options)
    }

    /// Takes the memory for a history of so many events, so that [`record_history`](Self::record_history) cannot fail
    /// for the lack of it. Changes nothing that is recorded.
    ///
    /// # Errors
    /// As [`record_history`](Self::record_history).
    pub fn reserve_history(&self, max_entries: usize) -> Result<(), FlexError> {
        self.shared.history.reserve(max_entries)
    }

    /// Whether anything is recorded.
    pub fn is_recording(&self) -> bool {
        self.shared.history.is_on()
    }

    /// The number of the next event, also while nothing is recorded. Takes no lock.
    pub fn next_event(&self) -> u64 {
        self.shared.history.next_number()
    }

    /// The recorded events from the number `from` on: 0 for all, [`RecordedEvents::next`] for those since. Takes no
    /// lock that an allocation would wait for.
    ///
    /// # Errors
    /// [`FlexError::Forked`] in a forked child.
    pub fn events(&self, from: u64) -> Result<RecordedEvents, FlexError> {
        if is_forked() { Err(FlexError::Forked) } else { Ok(self.shared.history.read(from, u64::MAX)) }
    }

    /// As [`events`](Self::events), for who takes events out as they come, from [`next_event`](Self::next_event) on:
    /// also what was forgotten meanwhile, or is of a recording that has ended, as long as nothing newer has overwritten
    /// it.
    ///
    /// # Errors
    /// [`FlexError::Forked`] in a forked child.
    pub fn drain_events(&self, from: u64) -> Result<RecordedEvents, FlexError> {
        if is_forked() { Err(FlexError::Forked) } else { Ok(self.shared.history.drain(from)) }
    }

    /// Returns unused memory to where it came from: wholly free regions to a device that takes them back, else
    /// the pages of free blocks to the host. Returns the bytes given back.
    ///
    /// # Errors
    /// [`FlexError::Device`] if the device refuses, [`FlexError::Forked`] in a forked child.
    pub fn empty_cache(&self) -> Result<u64, FlexError> {
        let mut guard = self.lock()?;
        guard.drained()?;
        let mut returned = 0;
        if self.device().can_release_regions() {
            returned += guard.release_free_regions()?;
        }
        Ok(returned + guard.trim_free_blocks()?)
    }

    /// Checks every invariant of the allocator.
    ///
    /// # Errors
    /// [`FlexError::Corrupted`] with the violated invariant.
    pub fn validate(&self) -> Result<(), FlexError> {
        self.with_drained(|state| {
            state.arena.validate()?;
            for placed in state.waiters.granted().flatten() {
                if !self.shared.pending.is_live(placed.handle) {
                    return Err(Violation(format!("granted block {:?} is not live", placed.handle)));
                }
            }
            Ok(())
        })?
        .map_err(|violation| FlexError::Corrupted(violation.to_string()))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.shared.device
    }

    /// The ways most requests go: one chunk, from this thread's magazine or found at the first look. `None` says
    /// nothing, [`place`](Self::place) does.
    #[inline]
    fn place_quickly(&self, bytes: u64, directive: &AllocationDirective) -> Option<Placed> {
        self.shared.take_parked(bytes, directive).or_else(|| self.place_at_once(bytes, directive))
    }

    #[inline]
    fn place_at_once(&self, bytes: u64, directive: &AllocationDirective) -> Option<Placed> {
        let shared = &*self.shared;
        if shared.poison {
            return None;
        }
        let mut guard = shared.lock().ok()?;
        let state = guard.state().ok()?;
        shared.drain(state);
        shared.settle_own(state);
        let placed = state.arena.place_at_once(bytes, directive)?;
        shared.prepare(&state.arena, &placed);
        Some(placed)
    }

    fn place(&self, bytes: u64, directive: &AllocationDirective) -> Result<Chunks, FlexError> {
        // Declared before the guard, hence dropped after it.
        let mut aftermath = Aftermath::default();
        let site = self.shared.history.allocation_site();
        let mut guard = self.lock()?;
        let state = guard.state()?;
        self.shared.settle_own(state);
        let mut placement = state.arena.check(bytes, directive)?;
        placement.site = site;
        let mut refusal = None;
        let placed = match guard.place(&mut placement, None, &mut refusal) {
            Ok(chunks) => Ok(chunks),
            Err(Unserved::Exhausted) => self.relieve(&mut guard, placement, refusal, &mut aftermath),
            Err(Unserved::Impossible) => Err(impossible(&mut guard, placement)?),
            Err(Unserved::Forked) => Err(FlexError::Forked),
        };
        drop(guard);
        aftermath.log(self.device().name(), bytes, placed.is_ok());
        let chunks = placed?;
        chunks.iter().for_each(|placed| self.shared.note_placed(placed, site));
        if self.shared.poison {
            self.poison_fresh(&chunks)?;
        }
        Ok(chunks)
    }

    /// Serves a request that was not served at first. While it lasts nothing is parked, so that whoever frees memory
    /// serves it.
    fn relieve(
        &self,
        guard: &mut AllocatorGuard<'_>,
        mut placement: Request,
        mut refusal: Option<FlexError>,
        aftermath: &mut Aftermath,
    ) -> Result<Chunks, FlexError> {
        let wanted = self.shared.parking.is_wanted();
        let _suspension = wanted.then(|| guard.unlocked(|_| Suspension::begin(&self.shared))).transpose()?;
        // What was parked or freed between its search and the suspension is found before anything is collected.
        let mut again = wanted;
        while again {
            again = self.shared.take_back_parked(guard.state()?);
            match guard.place(&mut placement, None, &mut refusal) {
                Ok(chunks) => return Ok(chunks),
                Err(Unserved::Forked) => return Err(FlexError::Forked),
                Err(Unserved::Exhausted | Unserved::Impossible) => {}
            }
        }
        pressure::exhausted(guard, placement, refusal, aftermath)
    }

    /// Fills fresh blocks with a pattern. If the device fails at that, they are free again.
    fn poison_fresh(&self, chunks: &Chunks) -> Result<(), FlexError> {
        let mut blocks = chunks.iter().map(|placed| placed.chunk);
        let filled =
            blocks.try_for_each(|chunk| self.device().fill(chunk.address, chunk.size_bytes, POISON_FRESH));
        if filled.is_err() {
            for placed in chunks {
                self.shared.free(placed.handle)?;
            }
        }
        Ok(filled?)
    }

    fn lock(&self) -> Result<AllocatorGuard<'_>, FlexError> {
        Ok(self.shared.lock()?)
    }

    fn with_drained<R>(&self, look: impl FnOnce(&mut State) -> R) -> Result<R, FlexError> {
        Ok(look(self.lock()?.drained()?))
    }
}

fn impossible(guard: &mut AllocatorGuard<'_>, placement: Request) -> Result<FlexError, FlexError> {
    let figures = guard.state()?.arena.figures(&placement);
    Ok(pressure::out_of_memory(guard, &PressureRequest::new(placement, None, figures), false)?)
}

impl fmt::Debug for FlexAllocator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FlexAllocator")
            .field("device", &self.shared.device.name())
            .finish_non_exhaustive()
    }
}
