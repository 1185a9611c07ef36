//! A naive model of an allocator: plain lists of live spans, everything recomputed at every question.
//!
//! The model does not choose offsets. It checks the ones that were chosen, knows exactly which requests can be
//! served and from which region, and what every figure must be.

use flex::{Chunk, DomainId, MemoryType, PlacementPolicy, RegionId, RegionOrder, Stat, Statistics, Topology};

use super::op::Ask;

/// What must come of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Placed,
    Exhausted,
    Impossible,
    /// The region of this slot is to be acquired first.
    NeedsRegion(usize),
}

/// Capacity, free bytes, largest free block, largest region.
pub type Figures = (u64, u64, u64, u64);

#[derive(Debug)]
struct Region {
    domain: DomainId,
    memory_type: MemoryType,
    usable_bytes: u64,
    id: Option<RegionId>,
    live: Vec<Span>,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    offset_bytes: u64,
    size_bytes: u64,
    requested_bytes: u64,
}

impl Region {
    /// Sizes of the free spans.
    fn gaps(&self) -> Vec<u64> {
        let mut live = self.live.clone();
        live.sort_by_key(|span| span.offset_bytes);
        let (mut gaps, mut end) = (Vec::new(), 0);
        for span in live {
            gaps.push(span.offset_bytes - end);
            end = span.offset_bytes + span.size_bytes;
        }
        gaps.push(self.usable_bytes - end);
        gaps.retain(|&gap| gap > 0);
        gaps
    }

    fn free_bytes(&self) -> u64 {
        self.gaps().iter().sum()
    }

    /// How many chunks of a size fit into the free spans.
    fn room_for(&self, chunk_bytes: u64) -> u64 {
        self.gaps().iter().map(|gap| gap / chunk_bytes).sum()
    }

    fn overlaps(&self, chunk: &Chunk) -> bool {
        let (start, end) = (chunk.address.offset_bytes, chunk.address.offset_bytes + chunk.size_bytes);
        self.live.iter().any(|span| start < span.offset_bytes + span.size_bytes && span.offset_bytes < end)
    }
}

/// The counters of one memory type.
#[derive(Debug, Default)]
struct Counters {
    allocated: Stat,
    requested: Stat,
    allocation: Stat,
    reserved: Stat,
    segment: Stat,
    split_bytes: Stat,
    split: Stat,
}

impl Counters {
    fn all(&mut self) -> [&mut Stat; 7] {
        [
            &mut self.allocated,
            &mut self.requested,
            &mut self.allocation,
            &mut self.reserved,
            &mut self.segment,
            &mut self.split_bytes,
            &mut self.split,
        ]
    }
}

/// The model.
#[derive(Debug)]
pub struct Model {
    regions: Vec<Region>,
    order: RegionOrder,
    limit_bytes: Option<u64>,
    tensor: Counters,
    program: Counters,
    out_of_memory_errors: u64,
}

impl Model {
    pub fn new(topology: &Topology, order: RegionOrder) -> Model {
        let regions = topology.regions().iter().map(|layout| Region {
            domain: layout.domain,
            memory_type: layout.memory_type,
            usable_bytes: layout.usable_bytes(),
            id: None,
            live: Vec::new(),
        });
        Model {
            regions: regions.collect(),
            order,
            limit_bytes: None,
            tensor: Counters::default(),
            program: Counters::default(),
            out_of_memory_errors: 0,
        }
    }

    /// What must come of a request, given the regions that refused it.
    pub fn outcome(&self, ask: &Ask, refused: &[usize]) -> Outcome {
        if !self.is_possible(ask) {
            return Outcome::Impossible;
        }
        if ask.total_bytes() > self.limit_left_bytes(ask.memory_type) {
            return Outcome::Exhausted;
        }
        let chunk_bytes = ask.chunk_bytes();
        for position in 0..ask.chunk_count() as usize {
            let domains = domains_of(ask, position);
            // Chunks of this domain up to this one; all are of one size, so they fit iff there is room for as many.
            let needed = match ask.policy {
                PlacementPolicy::Bind => 1,
                PlacementPolicy::Interleave => {
                    ask.domains[..=position].iter().filter(|domain| domains.contains(domain)).count()
                }
            };
            let suits =
                |region: &&Region| region.memory_type == ask.memory_type && domains.contains(&region.domain);
            let present = self.regions.iter().filter(suits).filter(|region| region.id.is_some());
            if present.map(|region| region.room_for(chunk_bytes)).sum::<u64>() >= needed as u64 {
                continue;
            }
            let absent = self.regions.iter().enumerate().find(|(slot, region)| {
                suits(region)
                    && region.id.is_none()
                    && region.usable_bytes >= chunk_bytes
                    && !refused.contains(slot)
            });
            return absent.map_or(Outcome::Exhausted, |(slot, _)| Outcome::NeedsRegion(slot));
        }
        Outcome::Placed
    }

    fn is_possible(&self, ask: &Ask) -> bool {
        let limit_bytes = match ask.memory_type {
            MemoryType::Tensor => self.limit_bytes.unwrap_or(u64::MAX),
            MemoryType::Program => u64::MAX,
        };
        let room = |domain: &[DomainId]| -> u64 {
            let suits =
                |region: &&Region| region.memory_type == ask.memory_type && domain.contains(&region.domain);
            self.regions.iter().filter(suits).map(|region| region.usable_bytes / ask.chunk_bytes()).sum()
        };
        ask.total_bytes() <= limit_bytes
            && match ask.policy {
                PlacementPolicy::Bind => room(&ask.domains) >= 1,
                PlacementPolicy::Interleave => ask.domains.iter().all(|domain| {
                    room(&[*domain]) >= ask.domains.iter().filter(|other| *other == domain).count() as u64
                }),
            }
    }

    /// Checks the chunks of a request, with the bytes each counts as requested, and records them.
    pub fn place(&mut self, ask: &Ask, chunks: &[(Chunk, u64)]) -> Result<(), String> {
        if chunks.len() as u64 != ask.chunk_count() {
            return Err(format!("{} chunks for {ask:?}", chunks.len()));
        }
        let requested_bytes: u64 = chunks.iter().map(|(_, requested_bytes)| requested_bytes).sum();
        if requested_bytes != ask.requested_bytes {
            return Err(format!("shares add up to {requested_bytes} for {ask:?}"));
        }
        for (position, (chunk, requested_bytes)) in chunks.iter().enumerate() {
            self.place_chunk(ask, position, chunk, *requested_bytes)?;
        }
        let counters = self.counters(ask.memory_type);
        rise(&mut counters.allocated, ask.total_bytes());
        rise(&mut counters.requested, ask.requested_bytes);
        rise(&mut counters.allocation, ask.chunk_count());
        self.follow_split();
        Ok(())
    }

    fn place_chunk(
        &mut self,
        ask: &Ask,
        position: usize,
        chunk: &Chunk,
        requested_bytes: u64,
    ) -> Result<(), String> {
        let expected = self.expected_region(ask, position).ok_or("no region can hold the chunk")?;
        let slot = self.slot_of(chunk)?;
        let region = &mut self.regions[slot];
        let Chunk { size_bytes, domain, .. } = *chunk;
        let offset_bytes = chunk.address.offset_bytes;
        if slot != expected {
            return Err(format!("{chunk:?} lies in region {slot}, not {expected}"));
        }
        if domain != region.domain || size_bytes != ask.chunk_bytes() || requested_bytes > size_bytes {
            return Err(format!("{chunk:?} (requested {requested_bytes}) for {ask:?}"));
        }
        if !offset_bytes.is_multiple_of(128) || offset_bytes + size_bytes > region.usable_bytes {
            return Err(format!("{chunk:?} in a region of {}", region.usable_bytes));
        }
        if region.overlaps(chunk) {
            return Err(format!("{chunk:?} overlaps a live one"));
        }
        region.live.push(Span { offset_bytes, size_bytes, requested_bytes });
        Ok(())
    }

    /// The first region in the order of search that has a fitting gap.
    fn expected_region(&self, ask: &Ask, position: usize) -> Option<usize> {
        let domains = domains_of(ask, position);
        let candidates = self.regions.iter().enumerate().filter(|(_, region)| {
            region.id.is_some()
                && region.memory_type == ask.memory_type
                && domains.contains(&region.domain)
                && region.room_for(ask.chunk_bytes()) > 0
        });
        candidates
            .min_by_key(|(slot, region)| {
                let free_bytes = region.free_bytes();
                let key = match self.order {
                    RegionOrder::MostFree => u64::MAX - free_bytes,
                    RegionOrder::LeastFree => free_bytes,
                };
                (key, *slot)
            })
            .map(|(slot, _)| slot)
    }

    /// Forgets a live chunk.
    pub fn free(&mut self, chunk: &Chunk) -> Result<(), String> {
        let slot = self.slot_of(chunk)?;
        let live = &mut self.regions[slot].live;
        let found = live.iter().position(|span| {
            (span.offset_bytes, span.size_bytes) == (chunk.address.offset_bytes, chunk.size_bytes)
        });
        let span = live.swap_remove(found.ok_or_else(|| format!("{chunk:?} is not live"))?);
        let memory_type = self.regions[slot].memory_type;
        let counters = self.counters(memory_type);
        fall(&mut counters.allocated, span.size_bytes);
        fall(&mut counters.requested, span.requested_bytes);
        fall(&mut counters.allocation, 1);
        self.follow_split();
        Ok(())
    }

    /// The device gave a region.
    pub fn acquire(&mut self, slot: usize, region_id: RegionId) {
        self.regions[slot].id = Some(region_id);
        let (memory_type, usable_bytes) = (self.regions[slot].memory_type, self.regions[slot].usable_bytes);
        let counters = self.counters(memory_type);
        rise(&mut counters.reserved, usable_bytes);
        rise(&mut counters.segment, 1);
    }

    /// The slots of the regions that are acquired and wholly free.
    pub fn free_regions(&self) -> Vec<usize> {
        let free = |slot: &usize| self.regions[*slot].id.is_some() && self.regions[*slot].live.is_empty();
        (0..self.regions.len()).filter(free).collect()
    }

    /// The device took a region back.
    pub fn return_region(&mut self, slot: usize) {
        self.regions[slot].id = None;
        let (memory_type, usable_bytes) = (self.regions[slot].memory_type, self.regions[slot].usable_bytes);
        let counters = self.counters(memory_type);
        fall(&mut counters.reserved, usable_bytes);
        fall(&mut counters.segment, 1);
    }

    pub fn set_limit_bytes(&mut self, limit_bytes: Option<u64>) {
        self.limit_bytes = limit_bytes;
    }

    pub fn count_out_of_memory(&mut self) {
        self.out_of_memory_errors += 1;
    }

    pub fn reset_peak(&mut self) {
        self.tensor.all().into_iter().chain(self.program.all()).for_each(|stat| stat.peak = stat.current);
    }

    pub fn reset_accumulated(&mut self) {
        let stats = self.tensor.all().into_iter().chain(self.program.all());
        stats.for_each(|stat| (stat.allocated, stat.freed) = (0, 0));
        self.out_of_memory_errors = 0;
    }

    /// What there is for a request.
    pub fn figures(&self, ask: &Ask, refused: &[usize]) -> Figures {
        self.figures_where(ask.memory_type, |slot, region| {
            ask.domains.contains(&region.domain).then(|| region.id.is_some() || !refused.contains(&slot))
        })
    }

    /// All statistics, except the number of retries.
    // Field by field: a non-exhaustive struct has no initializer outside its crate.
    #[allow(clippy::field_reassign_with_default)]
    pub fn statistics(&self) -> Statistics {
        let everything = |_: usize, _: &Region| Some(true);
        let tensor = self.figures_where(MemoryType::Tensor, everything);
        let program = self.figures_where(MemoryType::Program, everything);
        let mut statistics = Statistics::default();
        statistics.allocated_bytes = self.tensor.allocated;
        statistics.requested_bytes = self.tensor.requested;
        statistics.active_bytes = self.tensor.allocated;
        statistics.reserved_bytes = self.tensor.reserved;
        statistics.inactive_split_bytes = self.tensor.split_bytes;
        statistics.allocation = self.tensor.allocation;
        statistics.active = self.tensor.allocation;
        statistics.segment = self.tensor.segment;
        statistics.inactive_split = self.tensor.split;
        statistics.num_ooms = self.out_of_memory_errors;
        (statistics.capacity_bytes, statistics.free_bytes, statistics.largest_free_bytes, _) = tensor;
        statistics.program.allocated_bytes = self.program.allocated;
        statistics.program.requested_bytes = self.program.requested;
        statistics.program.allocation = self.program.allocation;
        statistics.program.reserved_bytes = self.program.reserved;
        (statistics.program.capacity_bytes, statistics.program.free_bytes, ..) = program;
        statistics
    }

    fn figures_where(
        &self,
        memory_type: MemoryType,
        includes: impl Fn(usize, &Region) -> Option<bool>,
    ) -> Figures {
        let left_bytes = self.limit_left_bytes(memory_type);
        let (mut capacity, mut free, mut largest, mut largest_region) = (0, 0, 0, 0);
        for (slot, region) in self.regions.iter().enumerate() {
            if region.memory_type != memory_type {
                continue;
            }
            let Some(counts_free) = includes(slot, region) else { continue };
            capacity += region.usable_bytes;
            largest_region = largest_region.max(region.usable_bytes);
            if counts_free {
                free += region.free_bytes();
                largest = region.gaps().into_iter().fold(largest, u64::max);
            }
        }
        (capacity, free.min(left_bytes), largest.min(left_bytes), largest_region)
    }

    fn limit_left_bytes(&self, memory_type: MemoryType) -> u64 {
        match (memory_type, self.limit_bytes) {
            (MemoryType::Tensor, Some(limit_bytes)) => {
                limit_bytes.saturating_sub(self.tensor.allocated.current) / 128 * 128
            }
            _ => u64::MAX,
        }
    }

    fn slot_of(&self, chunk: &Chunk) -> Result<usize, String> {
        let region_id = Some(chunk.address.region_id);
        let slot = self.regions.iter().position(|region| region.id == region_id);
        slot.ok_or_else(|| format!("{chunk:?} lies in no acquired region"))
    }

    fn counters(&mut self, memory_type: MemoryType) -> &mut Counters {
        match memory_type {
            MemoryType::Tensor => &mut self.tensor,
            MemoryType::Program => &mut self.program,
        }
    }

    fn follow_split(&mut self) {
        for memory_type in [MemoryType::Tensor, MemoryType::Program] {
            let in_use = self
                .regions
                .iter()
                .filter(|region| region.memory_type == memory_type && !region.live.is_empty());
            let gaps: Vec<u64> = in_use.flat_map(Region::gaps).collect();
            let counters = self.counters(memory_type);
            move_to(&mut counters.split_bytes, gaps.iter().sum());
            move_to(&mut counters.split, gaps.len() as u64);
        }
    }
}

/// Moves a figure to a value. Written apart from [`Stat`]'s own functions, so that they are checked too.
fn move_to(stat: &mut Stat, value: u64) {
    stat.allocated += value.saturating_sub(stat.current);
    stat.freed += stat.current.saturating_sub(value);
    stat.peak = stat.peak.max(value);
    stat.current = value;
}

fn rise(stat: &mut Stat, amount: u64) {
    move_to(stat, stat.current + amount);
}

fn fall(stat: &mut Stat, amount: u64) {
    move_to(stat, stat.current - amount);
}

fn domains_of(ask: &Ask, position: usize) -> &[DomainId] {
    match ask.policy {
        PlacementPolicy::Bind => &ask.domains,
        PlacementPolicy::Interleave => &ask.domains[position..=position],
    }
}
