//! What the handles of one allocator share: the mutex and what it protects, and what is reached without it.

use std::sync::{Arc, PoisonError, Weak};

use crate::address::Chunk;
use crate::arena::snapshot::BlockFacts;
use crate::arena::{Arena, BlockHandle, Chunks, Placed, Request, Unplaced};
use crate::device::Device;
use crate::error::FlexError;
use crate::fork::is_forked;
use crate::history::{EventBlock, EventKind, History};
use crate::magazines::parking::ParkingRules;
use crate::magazines::tally::Amounts;
use crate::magazines::{Magazine, Parking};
use crate::pending::{BlockRecord, Link, PendingFrees};
use crate::pressure::waiters::Waiters;
use crate::pressure::{PressureCounters, SharedCallback, collecting};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex};

/// What a poisoned fresh block is filled with.
pub(crate) const POISON_FRESH: u8 = 0xcd;
/// What a poisoned freed block is filled with.
pub(crate) const POISON_FREED: u8 = 0xdd;

/// The next allocator's [`Shared::id`].
static NEXT_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

/// A number that no other allocator of the process has or had.
pub(crate) fn new_id() -> u64 {
    NEXT_ID.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// One allocator. Lock: `mutex` protects [`State`]; every other field is atomic, immutable, or says its rule.
pub(crate) struct Shared {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) mutex: Mutex<State>,
    /// Signalled, with the mutex, when a region has been acquired or released.
    pub(crate) region_changed: Condvar,
    pub(crate) pending: PendingFrees,
    pub(crate) parking: ParkingRules,
    /// Raised by a free that found the mutex taken, lowered when its block is back or pending.
    pub(crate) frees_in_flight: AtomicUsize,
    pub(crate) counters: Arc<PressureCounters>,
    pub(crate) history: Arc<History>,
    /// Fill fresh and freed blocks with a pattern.
    pub(crate) poison: bool,
    /// Which device of the process it is.
    pub(crate) ordinal: u32,
    /// Names it among all allocators of the process, dead ones included.
    pub(crate) id: u64,
    /// Itself.
    pub(crate) this: Weak<Shared>,
}

/// The event of a free, once the right to it has been won: at once, or only requested.
pub(crate) type Claimed = fn(EventBlock) -> EventKind;

/// What the mutex protects.
pub(crate) struct State {
    pub(crate) arena: Arena,
    pub(crate) waiters: Waiters,
    pub(crate) callback: Option<SharedCallback>,
    /// Those of all threads, and of ended ones until somebody has looked.
    pub(crate) magazines: Vec<crate::sync::Arc<Magazine>>,
}

impl Shared {
    /// Drains at most one batch of pending frees and serves registered requests with what came free.
    #[inline]
    pub(crate) fn drain(&self, state: &mut State) {
        if !self.pending.is_empty() {
            self.drain_some(state);
        }
    }

    #[cold]
    fn drain_some(&self, state: &mut State) {
        self.settle_own(state);
        let mut all_settled = false;
        self.pending.drain(|block| {
            if block.was_parked {
                // The arena's counters know that a block was parked before it gets it.
                if !std::mem::replace(&mut all_settled, true) {
                    self.settle_all(state);
                }
                return self.release_parked(state, block.handle);
            }
            let Some(record) = self.pending.record(block.handle.index) else { return };
            if self.history.is_on() {
                self.history.record(EventKind::FreeCompleted(self.event_block(&record)), 0);
            }
            self.release_claimed(state, block.handle, &record);
        });
        self.serve(state);
    }

    /// Places a request, or says why not.
    pub(crate) fn place(&self, state: &mut State, request: &Request) -> Result<Chunks, Unplaced> {
        let chunks = state.arena.place(request)?;
        chunks.iter().for_each(|placed| self.prepare(&state.arena, placed));
        Ok(chunks)
    }

    /// Serves registered requests, oldest first. Called after memory came free.
    pub(crate) fn serve(&self, state: &mut State) {
        let State { arena, waiters, .. } = state;
        waiters.serve(|placement| match arena.place(placement) {
            Ok(chunks) => {
                chunks.iter().for_each(|placed| self.prepare(arena, placed));
                Some(chunks)
            }
            Err(unplaced) => {
                if let Unplaced::NeedsRegion(slot) = unplaced {
                    // This thread is freeing: it does not wait for a device. The request will ask itself.
                    arena.region_failed(slot);
                }
                None
            }
        });
    }

    /// Frees a block on any thread, inside a collection or not. Never blocks: if the mutex is taken, the block
    /// goes to the pending list.
    ///
    /// # Errors
    /// [`FlexError::UnknownAllocation`] if the handle is stale; nothing changes then.
    pub(crate) fn free(&self, handle: BlockHandle) -> Result<(), FlexError> {
        if is_forked() {
            return Ok(());
        }
        // An error is large: it is made here and nowhere below.
        if self.free_once(handle) { Ok(()) } else { Err(unknown(handle)) }
    }

    /// Frees a block; `false` if the handle is stale.
    #[inline]
    fn free_once(&self, handle: BlockHandle) -> bool {
        let Some(link) = self.pending.link(handle.index) else { return false };
        let record = link.record();
        if collecting::kind().is_some() {
            self.counters.count_freed(record.size_bytes());
        }
        if self.history.is_on() {
            return self.free_recorded(link, handle, &record);
        }
        self.free_claiming(link, handle, &record, &|_| ())
    }

    /// As [`free_once`](Self::free_once), with history on.
    #[cold]
    #[inline(never)]
    fn free_recorded(&self, link: &Link, handle: BlockHandle, record: &BlockRecord) -> bool {
        let site = self.history.free_site();
        let block = self.event_block(record);
        self.free_claiming(link, handle, record, &|kind| {
            self.history.record(kind(block), site);
        })
    }

    /// Calls `claimed` when this thread has won the right to free the block, before anybody can use it again.
    #[inline(always)]
    fn free_claiming(
        &self,
        link: &Link,
        handle: BlockHandle,
        record: &BlockRecord,
        claimed: &impl Fn(Claimed),
    ) -> bool {
        match self.park(link, handle, record, claimed) {
            Parking::Parked => true,
            Parking::Stale => false,
            Parking::Refused => self.free_directly(link, handle, record, claimed),
        }
    }

    /// Frees a block without parking it; `false` if the handle is stale.
    fn free_directly(
        &self,
        link: &Link,
        handle: BlockHandle,
        record: &BlockRecord,
        claimed: &impl Fn(Claimed),
    ) -> bool {
        if let Some(mut guard) = self.try_lock() {
            let shared = guard.shared();
            let Ok(state) = guard.state() else { return true };
            shared.settle_placements(state);
            if !link.claim(handle) {
                return false;
            }
            claimed(EventKind::Freed);
            shared.release_claimed(state, handle, record);
            shared.serve(state);
            shared.drain(state);
            return true;
        }
        let _in_flight = InFlight::new(&self.frees_in_flight);
        if !self.pending.push(link, handle, || claimed(EventKind::FreeRequested)) {
            return false;
        }
        self.after_unlock();
        true
    }

    /// Gives a block back to the arena, once, whoever else tries to free it.
    pub(crate) fn release(&self, state: &mut State, handle: BlockHandle) -> Result<(), FlexError> {
        match self.pending.link(handle.index) {
            Some(link) if link.claim(handle) => {
                self.release_claimed(state, handle, &link.record());
                Ok(())
            }
            _ => Err(unknown(handle)),
        }
    }

    /// Gives a block back that its owner has freed and this thread has claimed.
    #[inline]
    fn release_claimed(&self, state: &mut State, handle: BlockHandle, record: &BlockRecord) {
        // Also if no magazine is left: the blocks that they handed out outlive them.
        if self.parking.is_wanted() {
            state.arena.catch_up(handle, record.slack_bytes);
            if !state.arena.covers(Amounts::block(record.size_bytes(), record.slack_bytes)) {
                // Another thread's magazine handed it out, and has not settled that.
                self.settle_all(state);
            }
        }
        let released = state.arena.release(handle);
        debug_assert!(released.is_ok(), "a claimed block is occupied: {released:?}");
    }

    /// As [`free`](Self::free), filling the block first if blocks are poisoned: it is still the caller's.
    pub(crate) fn free_chunk(&self, placed: Placed) -> Result<(), FlexError> {
        let mut filled = Ok(());
        if self.poison && !is_forked() {
            filled = self.device.fill(placed.chunk.address, placed.chunk.size_bytes, POISON_FREED);
        }
        self.free(placed.handle)?;
        filled.map_err(FlexError::Device)
    }

    /// Readies a block for its free, before it is handed out.
    #[inline]
    pub(crate) fn prepare(&self, arena: &Arena, placed: &Placed) {
        self.pending.prepare(placed.handle, &arena.record_of(placed.handle));
    }

    /// Records that a block was handed out to the calling thread, if history is on. The mutex is free.
    #[inline]
    pub(crate) fn note_allocation(&self, placed: &Placed, requested_bytes: u64) {
        if self.history.is_on() {
            let Chunk { address, size_bytes, .. } = placed.chunk;
            let block = EventBlock { address, size_bytes, requested_bytes };
            self.history.record_allocation(placed.handle, block, None);
        }
    }

    /// As [`note_allocation`](Self::note_allocation), of a block that was found under the mutex, for a request from
    /// `site`.
    pub(crate) fn note_placed(&self, placed: &Placed, site: u32) {
        if let Some(record) = self.history.is_on().then(|| self.pending.record(placed.handle.index)).flatten()
        {
            self.history.record_allocation(placed.handle, self.event_block(&record), Some(site));
        }
    }

    /// A block as events have it.
    pub(crate) fn event_block(&self, record: &BlockRecord) -> EventBlock {
        let Chunk { address, size_bytes, .. } = self.parking.chunk_of(record);
        EventBlock { address, size_bytes, requested_bytes: size_bytes - u64::from(record.slack_bytes) }
    }

    /// What a snapshot says of an occupied block.
    pub(crate) fn facts_of(&self, index: u32) -> Option<BlockFacts> {
        let slack_bytes = self.pending.record(index)?.slack_bytes;
        let live = self.pending.live(index);
        let note = live.map(|handle| self.history.note(handle)).unwrap_or_default();
        Some(BlockFacts { slack_bytes, freeing: live.is_none(), note })
    }

    /// The chunk of a live block.
    pub(crate) fn lookup(&self, handle: BlockHandle) -> Option<Chunk> {
        let record = self.pending.is_live(handle).then(|| self.pending.record(handle.index))??;
        Some(self.parking.chunk_of(&record))
    }
}

impl Drop for Shared {
    /// Gives the regions back. The device reports its own failures; nobody is left to act on them here.
    fn drop(&mut self) {
        if is_forked() {
            return;
        }
        let state = self.mutex.get_mut().unwrap_or_else(PoisonError::into_inner);
        for region_id in state.arena.region_ids() {
            let _ = self.device.release_region(region_id);
        }
    }
}

fn unknown(handle: BlockHandle) -> FlexError {
    FlexError::UnknownAllocation { index: handle.index, generation: handle.generation }
}

/// Counts a free while it is under way, also when it unwinds.
pub(crate) struct InFlight<'a>(&'a AtomicUsize);

impl<'a> InFlight<'a> {
    pub(crate) fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        InFlight(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
