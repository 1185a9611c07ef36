//! The arena: all regions and blocks of one device, and the search for memory.
//!
//! One mechanism per file: [`blocks`] the slab of nodes, [`bins`] the free blocks of a region by size, [`region`]
//! split and coalesce, [`zones`] what goes where in it, [`lifecycle`] regions on their way from the device and back,
//! [`request`] what is asked and answered, [`trim`] free blocks held while the device drops their pages, [`counters`]
//! statistics, [`snapshot`] and [`validate`] what observers see.
//!
//! Purely single-threaded: the allocator mutex protects all of it. The arena never calls the device; a region it
//! lacks is marked and left to the caller to acquire outside the mutex.
//!
//! # Order of search
//!
//! Acquired regions that fit come first, in the [`RegionOrder`]; a region is acquired only if none of them
//! can serve, so that a device with few handles keeps some. Then the lowest absent slot that is large enough.

pub(crate) mod bins;
pub(crate) mod blocks;
pub(crate) mod counters;
pub(crate) mod lifecycle;
pub(crate) mod region;
pub(crate) mod request;
pub(crate) mod snapshot;
pub(crate) mod trim;
pub(crate) mod validate;
pub(crate) mod zones;

#[cfg(test)]
mod tests;

pub(crate) use blocks::BlockHandle;
pub(crate) use region::{RegionOrder, RegionSlot};
pub(crate) use request::{Chunks, Figures, Placed, Released, Request, Unplaced};

#[cfg(test)]
use crate::address::Chunk;
use crate::directive::{AllocationDirective, Lane, MemoryType, PlacementPolicy};
use crate::error::FlexError;
use crate::pending::BlockRecord;
use crate::topology::{MAX_REGION_BYTES, Topology};
use crate::units::{ALIGNMENT_BYTES, DomainId, align_down};
use blocks::{Blocks, Node};
use counters::{Counters, Step};
use region::{Phase, Region, Search};

/// All regions and blocks of one device.
#[derive(Debug)]
pub(crate) struct Arena {
    blocks: Blocks,
    regions: Vec<Region>,
    domain_count: u32,
    order: RegionOrder,
    counters: Counters,
    /// By lane: the only acquired region of that domain and memory type, the only one that a request looks at before
    /// it acquires more. [`NO_SLOT`] or [`SEVERAL_SLOTS`] if there is not exactly one, or if a limit is set.
    sole: [RegionSlot; Lane::COUNT],
    /// Cap on allocated tensor bytes.
    limit_bytes: Option<u64>,
}

/// No region; a topology has at most 4096.
const NO_SLOT: RegionSlot = RegionSlot(u16::MAX);

/// More than one region.
const SEVERAL_SLOTS: RegionSlot = RegionSlot(u16::MAX - 1);

/// What one chunk needs of a region.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    domains: &'a [DomainId],
    memory_type: MemoryType,
    size_units: u32,
}

impl Wanted<'_> {
    /// Whether the region could hold the chunk if it were empty.
    #[inline]
    fn suits(&self, region: &Region) -> bool {
        region.memory_type == self.memory_type
            && region.usable_units >= self.size_units
            && self.domains.contains(&region.domain)
    }
}

impl Arena {
    /// An arena with no region acquired.
    pub(crate) fn new(topology: &Topology, order: RegionOrder) -> Arena {
        Arena {
            blocks: Blocks::new(),
            regions: topology.regions().iter().map(Region::new).collect(),
            domain_count: topology.domain_count(),
            order,
            counters: Counters::default(),
            sole: [NO_SLOT; Lane::COUNT],
            limit_bytes: None,
        }
    }

    /// Checks a size and a directive; see [`Request::new`].
    #[inline]
    pub(crate) fn check(&self, bytes: u64, directive: &AllocationDirective) -> Result<Request, FlexError> {
        Request::new(bytes, directive, self.domain_count)
    }

    /// Places a request of one chunk, if a region that is there has a block for it. `None` says nothing more: what
    /// else there is to try, or why it is in vain, [`place`](Self::place) knows.
    #[inline]
    pub(crate) fn place_at_once(&mut self, bytes: u64, directive: &AllocationDirective) -> Option<Placed> {
        let size_units = units_of(bytes)?;
        let memory_type = directive.memory_type();
        let mut slot = self.sole[directive.lane().index()];
        if usize::from(slot.0) >= self.regions.len() {
            slot = self.best_region(size_units, directive)?;
        }
        let region = &mut self.regions[usize::from(slot.0)];
        if region.is_wholly_free() {
            return self.place_first(slot, bytes, memory_type);
        }
        let size_bytes = bytes_of(size_units);
        let carved = region.carve(&mut self.blocks, size_units, (size_bytes - bytes) as u8)?;
        self.counters.placed_one(memory_type, size_bytes, bytes, carved.gaps_beside);
        region.placed(&carved, size_units)
    }

    /// As [`place_at_once`](Self::place_at_once), in a region that is wholly free.
    #[cold]
    #[inline(never)]
    fn place_first(&mut self, slot: RegionSlot, bytes: u64, memory_type: MemoryType) -> Option<Placed> {
        let size_units = units_of(bytes)?;
        let mut step = Step::default();
        let size_bytes = bytes_of(size_units);
        let slack_bytes = (size_bytes - bytes) as u8;
        let placed = self.carve(slot, size_units, slack_bytes, Search::ByZone, &mut step)?;
        self.counters.placed(memory_type, size_bytes, bytes, 1, step);
        Some(placed)
    }

    /// The region that a request of one chunk tries first if there is no limit, if there is one that is large enough.
    #[inline(never)]
    fn best_region(&self, size_units: u32, directive: &AllocationDirective) -> Option<RegionSlot> {
        let (domains, memory_type) = (directive.domains(), directive.memory_type());
        let is_plain = directive.policy() == PlacementPolicy::Bind && self.limit_bytes.is_none();
        if !is_plain || domains.iter().any(|domain| domain.0 >= self.domain_count) {
            return None;
        }
        let (_, slot) = self.next_region(&Wanted { domains, memory_type, size_units }, None)?;
        Some(slot)
    }

    /// Brings `sole` up to date, after the limit or the phase of a region has changed.
    fn find_sole_regions(&mut self) {
        self.sole = self.sole_regions();
    }

    /// What `sole` should be.
    fn sole_regions(&self) -> [RegionSlot; Lane::COUNT] {
        let mut sole = [NO_SLOT; Lane::COUNT];
        if self.limit_bytes.is_some() {
            return sole;
        }
        for (slot, region) in self.slots().filter(|(_, region)| region.present_id().is_some()) {
            let lane = Lane::of(region.domain, region.memory_type);
            if lane != Lane::NONE {
                let entry = &mut sole[lane.index()];
                *entry = if *entry == NO_SLOT { slot } else { SEVERAL_SLOTS };
            }
        }
        sole
    }

    /// Places all chunks of a request or none.
    pub(crate) fn place(&mut self, request: &Request) -> Result<Chunks, Unplaced> {
        let Some(size_units) = request.chunk_units() else { return Err(Unplaced::Impossible) };
        if self.limit_left_bytes(request.memory_type) < request.total_bytes() {
            let possible = self.is_possible(request);
            return Err(if possible { Unplaced::Exhausted } else { Unplaced::Impossible });
        }
        let mut step = Step::default();
        let chunks = match request.chunk_count() {
            1 => Chunks::from_buf([self.place_chunk(request, 0, size_units, Search::ByZone, &mut step)?]),
            _ => self.place_several(request, size_units, &mut step)?,
        };
        let (total_bytes, count) = (request.total_bytes(), request.chunk_count() as u64);
        self.counters.placed(request.memory_type, total_bytes, request.requested_bytes, count, step);
        Ok(chunks)
    }

    /// Places the chunks of an interleaved request or none.
    #[cold]
    fn place_several(
        &mut self,
        request: &Request,
        size_units: u32,
        step: &mut Step,
    ) -> Result<Chunks, Unplaced> {
        let mut chunks = Chunks::with_capacity(request.chunk_count());
        let mut placed = self.place_chunks(request, size_units, &mut chunks, Search::ByZone, step);
        if placed.is_err() && !chunks.is_empty() {
            // An earlier chunk may lie in the middle of a gap that holds two of them side by side.
            self.roll_back(&mut chunks);
            *step = Step::default();
            if let Err(Unplaced::NeedsRegion(slot)) = placed {
                self.region_failed(slot); // Not asked for yet.
            }
            placed = self.place_chunks(request, size_units, &mut chunks, Search::SideBySide, step);
        }
        if placed.is_err() {
            self.roll_back(&mut chunks);
        }
        placed.map(|()| chunks)
    }

    fn place_chunks(
        &mut self,
        request: &Request,
        size_units: u32,
        chunks: &mut Chunks,
        search: Search,
        step: &mut Step,
    ) -> Result<(), Unplaced> {
        for chunk in 0..request.chunk_count() {
            chunks.push(self.place_chunk(request, chunk, size_units, search, step)?);
        }
        Ok(())
    }

    /// Frees a block.
    ///
    /// # Errors
    ///
    /// [`FlexError::UnknownAllocation`] for a handle that is stale or unknown; nothing changes.
    #[inline]
    pub(crate) fn release(&mut self, handle: BlockHandle) -> Result<Released, FlexError> {
        let Some(&node) = self.blocks.occupied(handle) else { return Err(unknown(handle)) };
        let region = &mut self.regions[usize::from(node.slot)];
        let gaps_beside = region.give_back(&mut self.blocks, handle.index);
        let size_bytes = bytes_of(node.size_units);
        let requested_bytes = size_bytes - u64::from(node.slack_bytes);
        let released = Released { size_bytes, requested_bytes, memory_type: region.memory_type };
        if region.is_wholly_free() {
            self.counters.released_last(released, gaps_beside, region.usable_bytes());
        } else {
            self.counters.released(released, gaps_beside);
        }
        Ok(released)
    }

    /// Where a block is, as its link will say.
    #[inline]
    pub(crate) fn record_of(&self, handle: BlockHandle) -> BlockRecord {
        let Node { size_units, offset_units, slot, slack_bytes, .. } = *self.blocks.node(handle.index);
        BlockRecord { size_units, offset_units, slot: RegionSlot(slot), slack_bytes }
    }

    /// The chunk of a live handle and the bytes asked for.
    #[cfg(test)]
    pub(crate) fn lookup(&self, handle: BlockHandle) -> Option<(Chunk, u64)> {
        let node = self.blocks.occupied(handle)?;
        let chunk = self.regions[usize::from(node.slot)].chunk_at(node.offset_units, node.size_units)?;
        Some((chunk, chunk.size_bytes - u64::from(node.slack_bytes)))
    }

    /// What there is for a request, over the regions it may use. A region not acquired counts as one free block,
    /// unless the device refused it to this request. Free and largest respect the limit, capacity does not.
    pub(crate) fn figures(&self, request: &Request) -> Figures {
        self.figures_where(|slot, region| {
            let usable =
                region.memory_type == request.memory_type && request.domains.contains(&region.domain);
            usable.then(|| region.present_id().is_some() || !request.refused.contains(&slot))
        })
        .limited_to(self.limit_left_bytes(request.memory_type))
    }

    /// Sums up the regions for which `includes` answers, with whether their free memory counts.
    fn figures_where(&self, includes: impl Fn(RegionSlot, &Region) -> Option<bool>) -> Figures {
        let mut figures = Figures::default();
        for (slot, region) in self.slots() {
            let Some(counts_free) = includes(slot, region) else { continue };
            figures.capacity_bytes += region.usable_bytes();
            figures.largest_region_bytes = figures.largest_region_bytes.max(region.usable_bytes());
            if !counts_free {
                continue;
            }
            let (free_units, largest_units) = match region.phase {
                Phase::Present(_) => (region.free_units, region.largest_free_units(&self.blocks)),
                _ => (region.usable_units, region.usable_units),
            };
            figures.free_bytes += bytes_of(free_units);
            figures.largest_free_bytes = figures.largest_free_bytes.max(bytes_of(largest_units));
        }
        figures
    }

    /// Whether an empty device could serve the request within the limit.
    pub(crate) fn is_possible(&self, request: &Request) -> bool {
        let Some(size_units) = request.chunk_units() else { return false };
        let limit_bytes = self.limit_bytes(request.memory_type);
        if limit_bytes.is_some_and(|limit_bytes| request.total_bytes() > limit_bytes) {
            return false;
        }
        let chunk_count = request.chunk_count();
        (0..chunk_count).all(|chunk| {
            let domains = request.domains_of(chunk);
            let wanted = Wanted { domains, memory_type: request.memory_type, size_units };
            let room: u64 = self
                .regions
                .iter()
                .filter(|region| wanted.suits(region))
                .map(|region| u64::from(region.usable_units / size_units))
                .sum();
            // An interleaved request may list a domain more than once.
            let needed = match request.policy {
                PlacementPolicy::Bind => 1,
                PlacementPolicy::Interleave => {
                    request.domains.iter().filter(|&domain| domains.contains(domain)).count()
                }
            };
            room >= needed as u64
        })
    }

    /// Caps the allocated tensor bytes, or lifts the cap. What is allocated already stays.
    pub(crate) fn set_limit_bytes(&mut self, limit_bytes: Option<u64>) {
        self.limit_bytes = limit_bytes;
        self.find_sole_regions();
    }

    /// The cap on allocated bytes of a memory type. Programs have none.
    pub(crate) fn limit_bytes(&self, memory_type: MemoryType) -> Option<u64> {
        match memory_type {
            MemoryType::Tensor => self.limit_bytes,
            MemoryType::Program => None,
        }
    }

    fn limit_left_bytes(&self, memory_type: MemoryType) -> u64 {
        match self.limit_bytes(memory_type) {
            Some(limit_bytes) => {
                align_down(limit_bytes.saturating_sub(self.counters.allocated_bytes(memory_type)))
            }
            _ => u64::MAX,
        }
    }

    fn place_chunk(
        &mut self,
        request: &Request,
        chunk: usize,
        size_units: u32,
        search: Search,
        step: &mut Step,
    ) -> Result<Placed, Unplaced> {
        let domains = request.domains_of(chunk);
        let wanted = Wanted { domains, memory_type: request.memory_type, size_units };
        let slack_bytes = request.slack_of(chunk);
        let mut tried = None;
        while let Some(rank) = self.next_region(&wanted, tried) {
            if let Some(placed) = self.carve(rank.1, size_units, slack_bytes, search, step) {
                return Ok(placed);
            }
            tried = Some(rank);
        }
        Err(self.without_present_region(request, &wanted))
    }

    /// The first present region after the ones tried, in the order of search, that has enough free bytes. Free
    /// bytes do not change during one search, so the key of the last one tried says which ones were.
    fn next_region(&self, wanted: &Wanted<'_>, tried: Option<Rank>) -> Option<Rank> {
        let mut best: Option<Rank> = None;
        for (slot, region) in self.slots() {
            if region.free_units < wanted.size_units || !wanted.suits(region) {
                continue;
            }
            let rank = (self.order.key(region.free_units), slot);
            if tried.is_none_or(|tried| rank > tried) && best.is_none_or(|best| rank < best) {
                best = Some(rank);
            }
        }
        best
    }

    /// Places one chunk in a region; the request has not been counted yet.
    fn carve(
        &mut self,
        slot: RegionSlot,
        size_units: u32,
        slack_bytes: u8,
        search: Search,
        step: &mut Step,
    ) -> Option<Placed> {
        let region = &mut self.regions[usize::from(slot.0)];
        let is_first = region.is_wholly_free();
        let carved = match search {
            Search::ByZone => region.carve(&mut self.blocks, size_units, slack_bytes)?,
            Search::SideBySide => region.carve_side_by_side(&mut self.blocks, size_units, slack_bytes)?,
        };
        if is_first {
            step.first_block(carved.gaps_beside, region.usable_bytes());
        } else {
            step.another_block(carved.gaps_beside);
        }
        region.placed(&carved, size_units)
    }

    /// Nothing acquired can serve: a region to acquire, one to wait for, or nothing.
    #[cold]
    fn without_present_region(&mut self, request: &Request, wanted: &Wanted<'_>) -> Unplaced {
        if !self.is_possible(request) {
            return Unplaced::Impossible;
        }
        let absent = self.slots().find(|(slot, region)| {
            region.phase == Phase::Absent && wanted.suits(region) && !request.refused.contains(slot)
        });
        if let Some((slot, _)) = absent {
            self.region_mut(slot).phase = Phase::Acquiring;
            return Unplaced::NeedsRegion(slot);
        }
        let busy = self.regions.iter().any(|region| {
            let changing = matches!(region.phase, Phase::Acquiring | Phase::Releasing(_));
            wanted.suits(region) && (changing || region.held_blocks > 0)
        });
        if busy { Unplaced::RegionBusy } else { Unplaced::Exhausted }
    }

    /// Undoes the chunks of a request that cannot be completed. Statistics have not seen them.
    fn roll_back(&mut self, chunks: &mut Chunks) {
        while let Some(placed) = chunks.pop() {
            let index = placed.handle.index;
            let region = &mut self.regions[usize::from(self.blocks.node(index).slot)];
            region.give_back(&mut self.blocks, index);
        }
    }

    fn slots(&self) -> impl Iterator<Item = (RegionSlot, &Region)> {
        // A topology has at most 4096 regions.
        self.regions.iter().enumerate().map(|(slot, region)| (RegionSlot(slot as u16), region))
    }

    fn region_mut(&mut self, slot: RegionSlot) -> &mut Region {
        &mut self.regions[usize::from(slot.0)]
    }
}

/// A region's place in the order of search: the order's key, then the slot.
type Rank = (u32, RegionSlot);

#[inline]
fn bytes_of(units: u32) -> u64 {
    u64::from(units) * ALIGNMENT_BYTES
}

/// A size in units, rounded up; `None` for 0 and for more than a region can have.
#[inline]
fn units_of(bytes: u64) -> Option<u32> {
    // One comparison for both: less one, 0 is the largest number.
    let below = bytes.wrapping_sub(1);
    (below < MAX_REGION_BYTES).then(|| (below / ALIGNMENT_BYTES) as u32 + 1)
}

#[cold]
#[inline(never)]
fn unknown(handle: BlockHandle) -> FlexError {
    FlexError::UnknownAllocation { index: handle.index, generation: handle.generation }
}
