//! How the allocator uses magazines: blocks parked when they are freed, taken for requests, and taken back.
//!
//! Lock: none to park and to take; the allocator mutex to take back, where it can be had at once: frees never wait for
//! it. Under the mutex the arena calls a parked block occupied, and its counters know those that were settled.

use std::sync::Weak;

use super::rack::{Class, Rack};
use super::tally::Amounts;
use super::thread::{self, Own};
use super::{Magazine, Parking};
use crate::address::{Chunk, VirtualAddress};
use crate::arena::{BlockHandle, Placed, RegionSlot};
use crate::directive::{AllocationDirective, Lane, MemoryType, PlacementPolicy};
use crate::fork::is_forked;
use crate::history::EventKind;
use crate::pending::{BlockRecord, DRAIN_LIMIT, Link};
use crate::shared::{Claimed, InFlight, Shared, State};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::barrier;
use crate::topology::{RegionLayout, Topology};
use crate::units::{ALIGNMENT_BYTES, DomainId, RegionId};

/// What is known of a region without the mutex.
struct RegionPlace {
    domain: DomainId,
    lane: Lane,
    /// The device's id, while the region is acquired.
    region_id: AtomicU64,
}

/// Whether blocks may be parked, and the regions they may lie in.
pub(crate) struct ParkingRules {
    /// Whether it is wanted at all.
    wanted: bool,
    /// How many reasons there are against it now: requests under pressure, or a limit.
    suspensions: AtomicU32,
    /// The most bytes of a rack.
    most_bytes: u64,
    domain_count: u32,
    regions: Box<[RegionPlace]>,
}

/// A rack holds at most this part of the device's tensor memory, or two blocks.
const PART_OF_A_RACK: u64 = 64;

impl ParkingRules {
    pub(crate) fn new(topology: &Topology, wanted: bool) -> ParkingRules {
        if wanted {
            barrier::prepare();
        }
        let place = |layout: &RegionLayout| RegionPlace {
            domain: layout.domain,
            lane: Lane::of(layout.domain, layout.memory_type),
            region_id: AtomicU64::new(0),
        };
        let tensor_regions =
            topology.regions().iter().filter(|layout| layout.memory_type == MemoryType::Tensor);
        let tensor_bytes: u64 = tensor_regions.map(RegionLayout::usable_bytes).sum();
        ParkingRules {
            wanted,
            suspensions: AtomicU32::new(0),
            most_bytes: tensor_bytes / PART_OF_A_RACK,
            domain_count: topology.domain_count(),
            regions: topology.regions().iter().map(place).collect(),
        }
    }

    /// Whether blocks are ever parked.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }

    #[inline]
    fn is_suspended(&self) -> bool {
        !self.wanted || self.suspensions.load(Ordering::Relaxed) != 0
    }

    /// From now on no block is parked. A block that was, or is just being parked, is found by whoever takes back what
    /// is parked after this.
    pub(crate) fn suspend(&self) {
        if self.wanted {
            self.suspensions.fetch_add(1, Ordering::SeqCst);
            barrier::heavy();
        }
    }

    /// One more reason, while parking is suspended already.
    pub(crate) fn suspend_too(&self) {
        if self.wanted {
            self.suspensions.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Ends what [`suspend`](Self::suspend) began.
    pub(crate) fn resume(&self) {
        if self.wanted {
            self.suspensions.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// The class of a block, if blocks like it are parked.
    #[inline]
    fn class_of(&self, record: &BlockRecord) -> Option<Class> {
        Class::new(self.regions.get(usize::from(record.slot.0))?.lane, record.size_units)
    }

    /// A region has been acquired. Called under the mutex, before a block of it is handed out.
    pub(crate) fn note_region(&self, slot: RegionSlot, region_id: RegionId) {
        self.regions[usize::from(slot.0)].region_id.store(region_id.0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn chunk_of(&self, record: &BlockRecord) -> Chunk {
        let place = &self.regions[usize::from(record.slot.0)];
        // A region with a block in it keeps its id.
        let region_id = RegionId(place.region_id.load(Ordering::Relaxed));
        let offset_bytes = u64::from(record.offset_units) * ALIGNMENT_BYTES;
        Chunk {
            address: VirtualAddress { region_id, offset_bytes },
            size_bytes: record.size_bytes(),
            domain: place.domain,
        }
    }
}

/// While it lives, nothing is parked.
pub(crate) struct Suspension<'a>(&'a Shared);

impl<'a> Suspension<'a> {
    pub(crate) fn begin(shared: &'a Shared) -> Self {
        shared.parking.suspend();
        Suspension(shared)
    }
}

impl Drop for Suspension<'_> {
    fn drop(&mut self) {
        self.0.parking.resume();
    }
}

impl Shared {
    /// A block for a request from this thread's magazine.
    #[inline]
    pub(crate) fn take_parked(&self, bytes: u64, directive: &AllocationDirective) -> Option<Placed> {
        if self.parking.is_suspended() || is_forked() {
            return None;
        }
        match directive.lane() {
            Lane::NONE => self.take_of_any_domain(bytes, directive),
            lane => self.take_of(lane, bytes),
        }
    }

    /// As [`take_parked`](Self::take_parked), for a request that may use several domains: in the order they are listed.
    fn take_of_any_domain(&self, bytes: u64, directive: &AllocationDirective) -> Option<Placed> {
        let domains = directive.domains();
        let exist = domains.iter().all(|domain| domain.0 < self.parking.domain_count);
        if directive.policy() != PlacementPolicy::Bind || !exist {
            return None;
        }
        domains.iter().find_map(|&domain| self.take_of(Lane::of(domain, directive.memory_type()), bytes))
    }

    #[inline]
    fn take_of(&self, lane: Lane, bytes: u64) -> Option<Placed> {
        self.take_of_class(Class::wanted(bytes, lane)?, bytes)
    }

    #[inline(never)]
    fn take_of_class(&self, class: Class, bytes: u64) -> Option<Placed> {
        let taken = thread::with_own(self.id, |magazine| {
            let claimed = magazine.take(class)?;
            // Rounding adds less than 128 bytes.
            let slack_bytes = (class.size_bytes() - bytes) as u8;
            let (handle, record) = self.pending.renew(claimed, slack_bytes)?;
            magazine.tally.place(Amounts::block(class.size_bytes(), slack_bytes));
            thread::note_unsettled();
            Some(Placed { handle, chunk: self.parking.chunk_of(&record) })
        });
        match taken {
            Own::Used(placed) => placed,
            Own::Missing | Own::Ending => None,
        }
    }

    /// Parks a block instead of freeing it, if blocks like it are parked.
    #[inline]
    pub(crate) fn park(
        &self,
        link: &Link,
        handle: BlockHandle,
        record: &BlockRecord,
        claimed: &impl Fn(Claimed),
    ) -> Parking {
        if self.parking.is_suspended() {
            return Parking::Refused;
        }
        let Some(class) = self.parking.class_of(record) else { return Parking::Refused };
        let park = |magazine: &Magazine| self.park_in(magazine, class, link, handle, record, claimed);
        match thread::with_own(self.id, park) {
            Own::Used(parking) => parking,
            Own::Missing => {
                self.give_this_thread_a_magazine();
                Parking::Refused
            }
            Own::Ending => Parking::Refused,
        }
    }

    #[inline]
    fn park_in(
        &self,
        magazine: &Magazine,
        class: Class,
        link: &Link,
        handle: BlockHandle,
        record: &BlockRecord,
        claimed: &impl Fn(Claimed),
    ) -> Parking {
        let rack = magazine.rack_of(class);
        if !rack.holds(class) || rack.is_full() {
            return self.park_in_place_of_others(magazine, class, link, handle, record, claimed);
        }
        if !link.claim(handle) {
            return Parking::Stale;
        }
        claimed(EventKind::Freed);
        if self.is_suspended_after_pushing(magazine, rack, handle, record) {
            self.give_back_newest(rack);
        }
        Parking::Parked
    }

    /// Parks where a block can only be parked if others give way: those of another class, or some of its own.
    #[inline(never)]
    fn park_in_place_of_others(
        &self,
        magazine: &Magazine,
        class: Class,
        link: &Link,
        handle: BlockHandle,
        record: &BlockRecord,
        claimed: &impl Fn(Claimed),
    ) -> Parking {
        let rack = magazine.rack_of(class);
        let holds = rack.holds(class);
        if !holds && rack.refuses() {
            return Parking::Refused;
        }
        if !link.claim(handle) {
            return Parking::Stale;
        }
        claimed(EventKind::Freed);
        // Until they are back in the arena a request in need waits for them.
        let _in_flight = InFlight::new(&self.frees_in_flight);
        let mut displaced = if holds { rack.overflow() } else { rack.adopt(class, self.parking.most_bytes) };
        if self.is_suspended_after_pushing(magazine, rack, handle, record) {
            displaced.extend(rack.pop());
        }
        self.give_back(&displaced);
        Parking::Parked
    }

    /// Puts a claimed block into a rack. Whether parking has been suspended: then the block must come out again.
    #[inline]
    fn is_suspended_after_pushing(
        &self,
        magazine: &Magazine,
        rack: &Rack,
        handle: BlockHandle,
        record: &BlockRecord,
    ) -> bool {
        magazine.tally.free(Amounts::block(record.size_bytes(), record.slack_bytes));
        thread::note_unsettled();
        rack.push(handle);
        barrier::light();
        self.parking.is_suspended()
    }

    #[cold]
    fn give_back_newest(&self, rack: &Rack) {
        let _in_flight = InFlight::new(&self.frees_in_flight);
        self.give_back(rack.pop().as_slice());
    }

    #[cold]
    fn give_this_thread_a_magazine(&self) {
        let magazine = Arc::new(Magazine::new());
        let Some(mut guard) = self.try_lock() else { return };
        let Ok(state) = guard.state() else { return };
        // Those of ended threads that never parked have met nobody yet who forgets them.
        if state.magazines.iter().any(|magazine| magazine.is_orphaned()) {
            self.settle_all(state);
        }
        state.magazines.push(Arc::clone(&magazine));
        drop(guard);
        if !thread::adopt(Weak::clone(&self.this), self.id, &magazine) {
            magazine.orphan();
        }
    }

    /// Gives parked blocks, taken out of a magazine, back to the arena. The caller has a free in flight for them.
    #[cold]
    pub(crate) fn give_back(&self, parked: &[BlockHandle]) {
        if is_forked() || parked.is_empty() {
            return;
        }
        if let Some(mut guard) = self.try_lock() {
            let Ok(state) = guard.state() else { return };
            self.settle_all(state);
            parked.iter().for_each(|&handle| self.release_parked(state, handle));
            self.serve(state);
            self.drain(state);
            return;
        }
        parked.iter().for_each(|&handle| self.pending.push_parked(handle));
        self.after_unlock();
    }

    /// Gives back all that a magazine holds. On any thread, without waiting; at most a batch in each hold of the mutex.
    pub(crate) fn give_back_all(&self, magazine: &Magazine) {
        let _in_flight = InFlight::new(&self.frees_in_flight);
        loop {
            let mut parked = Vec::new();
            magazine.take_back(&mut parked, DRAIN_LIMIT);
            if parked.is_empty() {
                return;
            }
            self.give_back(&parked);
        }
    }

    /// Gives back what magazines hold, at most a batch, and settles what went through them. Whether there was anything:
    /// then there may be more.
    pub(crate) fn take_back_parked(&self, state: &mut State) -> bool {
        if state.magazines.is_empty() {
            return false;
        }
        let mut parked = Vec::new();
        state.magazines.iter().for_each(|magazine| magazine.take_back(&mut parked, DRAIN_LIMIT));
        // The arena's counters know that the blocks were parked before it gets them.
        self.settle_all(state);
        parked.iter().for_each(|&handle| self.release_parked(state, handle));
        if !parked.is_empty() {
            self.serve(state);
        }
        !parked.is_empty()
    }

    /// Gives a parked block, taken out of a magazine, back to the arena.
    pub(crate) fn release_parked(&self, state: &mut State, handle: BlockHandle) {
        let released = state.arena.release_parked(handle);
        debug_assert!(released.is_ok(), "a parked block is occupied: {released:?}");
    }
}
