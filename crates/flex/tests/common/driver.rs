//! An allocator on a simulated device and the naive model, step by step, every invariant checked after every step.
//!
//! One thread. The property test and the fuzzer draw the operations; what must come of each is decided here.

// Each of its users has a crate around it.
#![allow(dead_code, unreachable_pub)]

use std::collections::BTreeSet;
use std::sync::Arc;

use flex::{
    AllocationDirective, AllocatorOptions, BlockHandle, Chunk, CompositeAddress, Device, DomainId,
    FlexAllocator, FlexError, PlacementError, PlacementPolicy, RegionId, RegionOrder, RegionSetupError,
    Topology, VirtualAddress,
};
use flex_sim::{RegionIdScheme, SimulatedDevice, SimulatedOptions};

use crate::common::model::{Model, Outcome};
use crate::common::op::{Ask, Op};

/// Blocks smaller than this have no page to give back.
const TRIM_MINIMUM_BYTES: u64 = 4096;

/// What poison fills fresh blocks with.
const FRESH: u8 = 0xcd;

/// The device and the options of a run.
#[derive(Debug, Clone)]
pub struct Setup {
    pub topology: Topology,
    pub region_order: RegionOrder,
    pub can_release: bool,
    pub poison: bool,
    pub magazines: bool,
}

/// A live allocation.
enum Held {
    Owned(CompositeAddress),
    /// Of a foreign owner.
    Block(BlockHandle, Chunk),
}

impl Held {
    fn chunks(&self) -> Vec<Chunk> {
        match self {
            Held::Owned(allocation) => allocation.chunks().collect(),
            Held::Block(_, chunk) => vec![*chunk],
        }
    }
}

/// A run under way.
pub struct Run {
    allocator: FlexAllocator,
    device: Arc<SimulatedDevice>,
    setup: Setup,
    model: Model,
    live: Vec<Held>,
    freed: Vec<BlockHandle>,
    /// The indices that the device has given to regions.
    region_ids: BTreeSet<u64>,
    /// The slots of acquired regions and their ids.
    acquired: Vec<(usize, u64)>,
    fail_next_acquire: bool,
    /// Requests that failed although an empty device could have served them, and those since the sums were reset.
    events: u64,
    retries: u64,
}

impl Run {
    pub fn new(setup: Setup) -> Run {
        let device = SimulatedDevice::new(SimulatedOptions {
            capacity_bytes: setup.topology.total_bytes(),
            region_ids: RegionIdScheme::Index,
            can_release_regions: setup.can_release,
            ..SimulatedOptions::default()
        });
        let device = device.unwrap();
        let Setup { region_order, poison, magazines, .. } = setup;
        let options = AllocatorOptions { region_order, poison, magazines, ..AllocatorOptions::default() };
        Run {
            allocator: FlexAllocator::new(device.clone(), &setup.topology, options).unwrap(),
            device,
            model: Model::new(&setup.topology, region_order),
            setup,
            live: Vec::new(),
            freed: Vec::new(),
            region_ids: BTreeSet::new(),
            acquired: Vec::new(),
            fail_next_acquire: false,
            events: 0,
            retries: 0,
        }
    }

    /// What the model knows, to choose the next operation by.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The device's layout.
    pub fn topology(&self) -> &Topology {
        &self.setup.topology
    }

    pub fn step(&mut self, op: &Op) {
        match op {
            Op::Allocate(ask) => self.allocate(ask, None),
            Op::AllocateNear { ask, pick } => self.allocate_near(ask, *pick),
            Op::Free { pick } => self.free(*pick),
            Op::FreeWhileLocked { pick } => self.free_while_locked(*pick),
            Op::FreeAgain { pick } => {
                if !self.freed.is_empty() {
                    self.expect_unknown(self.freed[pick % self.freed.len()]);
                }
            }
            Op::FreeUnknown { index, generation } => {
                // A generation that no run of this length reaches.
                let generation = u64::from(generation | 1 << 23);
                self.expect_unknown(BlockHandle::from_raw(generation << 32 | u64::from(*index)));
            }
            Op::FailNextAcquire => {
                self.device.injection().fail_nth_acquire(1);
                self.fail_next_acquire = true;
            }
            Op::ReleaseFreeRegions { device_keeps } => self.empty_cache(*device_keeps),
            Op::Trim { .. } => self.empty_cache(false),
            Op::SetLimit { limit_bytes } => {
                self.allocator.set_limit_bytes(*limit_bytes).unwrap();
                self.model.set_limit_bytes(*limit_bytes);
            }
            Op::ResetPeak => {
                self.allocator.reset_peak_statistics().unwrap();
                self.model.reset_peak();
            }
            Op::ResetAccumulated => {
                self.allocator.reset_accumulated_statistics().unwrap();
                self.model.reset_accumulated();
                self.retries = 0;
            }
        }
        self.check();
    }

    /// Frees everything: nothing may be left.
    pub fn finish(mut self) {
        while !self.live.is_empty() {
            self.step(&Op::Free { pick: 0 });
        }
        self.step(&Op::ReleaseFreeRegions { device_keeps: false });
        assert_eq!(self.device.acquired_bytes() == 0, self.setup.can_release || self.acquired.is_empty());
        let pressure = self.allocator.pressure_statistics();
        assert_eq!((pressure.events, pressure.rescued, pressure.failed), (self.events, 0, self.events));
        drop(self.allocator);
        assert_eq!(Arc::strong_count(&self.device), 1, "the allocator is gone");
    }

    fn check(&self) {
        self.allocator.validate().unwrap();
        let mut expected = self.model.statistics();
        expected.num_alloc_retries = self.retries;
        let mut statistics = self.allocator.statistics().unwrap();
        if self.setup.magazines {
            // They return the blocks of one step in an order of their own, which splits and unites others in between.
            for (split, expected) in [
                (&mut statistics.inactive_split, expected.inactive_split),
                (&mut statistics.inactive_split_bytes, expected.inactive_split_bytes),
            ] {
                assert_eq!(split.current, expected.current);
                *split = expected;
            }
        }
        assert_eq!(statistics, expected);
    }

    /// `near` are the domains to be near to; those of the ask are the same then.
    fn allocate(&mut self, ask: &Ask, near: Option<&[DomainId]>) {
        if let Some(expected) = ask.refusal(self.setup.topology.domain_count()) {
            assert_eq!(self.attempt(ask, near).map(|held| held.chunks()), Err(expected), "{ask:?}");
            return;
        }
        let (outcome, refused) = self.expected(ask);
        match (outcome, self.attempt(ask, near)) {
            (Outcome::Placed, Ok(held)) => {
                let chunks = held.chunks();
                assert_eq!(chunks.iter().map(|chunk| chunk.size_bytes).sum::<u64>(), ask.total_bytes());
                self.check_poison(&chunks);
                self.model.place(ask, &self.shares(&chunks)).unwrap();
                self.live.push(held);
            }
            (Outcome::Exhausted, Err(FlexError::RegionSetup(RegionSetupError::Refused { .. }))) => {
                assert!(!refused.is_empty());
                self.count_event();
            }
            (outcome, Err(FlexError::OutOfMemory(report))) => {
                assert_eq!(outcome, if report.possible { Outcome::Exhausted } else { Outcome::Impossible });
                assert!(refused.is_empty() || !report.possible);
                let figures = (
                    report.capacity_bytes,
                    report.free_bytes,
                    report.largest_free_bytes,
                    report.largest_region_bytes,
                );
                assert_eq!(figures, self.model.figures(ask, &refused), "{ask:?}");
                self.model.count_out_of_memory();
                if report.possible {
                    self.count_event();
                }
            }
            (expected, result) => {
                panic!("{ask:?}: expected {expected:?}, got {:?}", result.map(|held| held.chunks()))
            }
        }
    }

    fn allocate_near(&mut self, ask: &Ask, pick: usize) {
        let Some(near) = self.live.get(pick % self.live.len().max(1)) else { return };
        let domains: Vec<DomainId> = near.chunks().iter().map(|chunk| chunk.domain).collect();
        self.allocate(&Ask { domains: domains.clone(), ..ask.clone() }, Some(&domains));
    }

    /// Either way in gives the same.
    fn attempt(&self, ask: &Ask, near: Option<&[DomainId]>) -> Result<Held, FlexError> {
        let directive = match near {
            None => ask.directive()?,
            Some(domains) => AllocationDirective::builder()
                .policy(ask.policy)
                .near(domains, true)
                .memory_type(ask.memory_type)
                .build()?,
        };
        if ask.policy == PlacementPolicy::Bind && ask.requested_bytes.is_multiple_of(2) {
            let (handle, chunk) = self.allocator.allocate_block(ask.requested_bytes, &directive)?;
            return Ok(Held::Block(handle, chunk));
        }
        self.allocator.allocate(ask.requested_bytes, &directive).map(Held::Owned)
    }

    /// A request that was possible has failed.
    fn count_event(&mut self) {
        self.events += 1;
        self.retries += 1;
    }

    /// What must come of a request; the model acquires the regions that the allocator will.
    fn expected(&mut self, ask: &Ask) -> (Outcome, Vec<usize>) {
        let mut refused = Vec::new();
        loop {
            match self.model.outcome(ask, &refused) {
                Outcome::NeedsRegion(slot) if std::mem::take(&mut self.fail_next_acquire) => {
                    refused.push(slot)
                }
                Outcome::NeedsRegion(slot) => {
                    let region_id = (0..).find(|id| !self.region_ids.contains(id)).unwrap();
                    self.region_ids.insert(region_id);
                    self.acquired.push((slot, region_id));
                    self.model.acquire(slot, RegionId(region_id));
                }
                outcome => return (outcome, refused),
            }
        }
    }

    /// The chunks and the bytes each counts as requested.
    fn shares(&self, chunks: &[Chunk]) -> Vec<(Chunk, u64)> {
        let regions = self.allocator.snapshot().unwrap();
        let requested = |chunk: &Chunk| {
            let region = regions.iter().find(|region| region.region_id == chunk.address.region_id)?;
            let mut blocks = region.blocks.iter();
            blocks.find(|block| block.occupied && block.offset_bytes == chunk.address.offset_bytes)
        };
        chunks.iter().map(|chunk| (*chunk, requested(chunk).unwrap().requested_bytes)).collect()
    }

    /// If fresh blocks are poisoned, both ends of these are.
    fn check_poison(&self, chunks: &[Chunk]) {
        if !self.setup.poison {
            return;
        }
        for chunk in chunks {
            for inside in [0, chunk.size_bytes - 1] {
                let VirtualAddress { region_id, offset_bytes } = chunk.address;
                let address = VirtualAddress { region_id, offset_bytes: offset_bytes + inside };
                let mut byte = [0];
                self.device.copy_out(address, &mut byte).unwrap();
                assert_eq!(byte, [FRESH], "{chunk:?} at {inside}");
            }
        }
    }

    /// Takes a live allocation out of the model, and out of here as handles or as what is left to drop. What is
    /// pending is freed newest first, which the sums of free blocks beside occupied ones show.
    fn forget(&mut self, pick: usize, pending: bool) -> Option<Result<BlockHandle, CompositeAddress>> {
        if self.live.is_empty() {
            return None;
        }
        let held = self.live.swap_remove(pick % self.live.len());
        let mut chunks = held.chunks();
        if pending {
            chunks.reverse();
        }
        for chunk in chunks {
            self.model.free(&chunk).unwrap();
        }
        let released = match held {
            Held::Owned(allocation) if pick.is_multiple_of(2) => allocation.into_block(),
            Held::Owned(allocation) => Err(allocation),
            Held::Block(handle, _) => Ok(handle),
        };
        self.freed.extend(released.as_ref().ok());
        Some(released)
    }

    fn free(&mut self, pick: usize) {
        match self.forget(pick, false) {
            Some(Ok(handle)) => self.allocator.free_block(handle).unwrap(),
            Some(Err(allocation)) => {
                let reference = allocation.reference();
                assert!(reference.is_live());
                allocation.free().unwrap();
                let near = AllocationDirective::builder().near(reference.domains(), reference.is_live());
                assert_eq!(near.build(), Err(PlacementError::NearNotLive.into()));
            }
            None => {}
        }
    }

    fn free_while_locked(&mut self, pick: usize) {
        let Some(released) = self.forget(pick, true) else { return };
        let freed = match released {
            // To fill a block that it knows by handle alone, the allocator has to lock.
            Ok(handle) if self.setup.poison => self.allocator.free_block(handle),
            Ok(handle) => self.allocator.while_locked(|| self.allocator.free_block(handle)).unwrap(),
            Err(allocation) => self.allocator.while_locked(|| allocation.free()).unwrap(),
        };
        freed.unwrap();
    }

    fn expect_unknown(&self, handle: BlockHandle) {
        let error = self.allocator.free_block(handle).unwrap_err();
        assert!(matches!(error, FlexError::UnknownAllocation { .. }), "{error}");
        assert_eq!(self.allocator.block(handle).unwrap(), None);
    }

    fn empty_cache(&mut self, device_keeps: bool) {
        let leaving = if self.setup.can_release { self.model.free_regions() } else { Vec::new() };
        if device_keeps && !leaving.is_empty() {
            self.device.injection().fail_release(leaving.len() as u64);
            assert!(matches!(self.allocator.empty_cache(), Err(FlexError::Device(_))));
            return;
        }
        let reserved = |run: &Run| -> u64 {
            run.allocator.snapshot().unwrap().iter().map(|region| region.size_bytes).sum()
        };
        let reserved_before = reserved(self);
        let returned_bytes = self.allocator.empty_cache().unwrap();
        for slot in leaving {
            self.model.return_region(slot);
            let (_, id) =
                self.acquired.swap_remove(self.acquired.iter().position(|at| at.0 == slot).unwrap());
            self.region_ids.remove(&id);
        }
        assert_eq!(returned_bytes, reserved_before - reserved(self) + self.trimmable_bytes());
    }

    fn trimmable_bytes(&self) -> u64 {
        let blocks = self.allocator.snapshot().unwrap().into_iter().flat_map(|region| region.blocks);
        let free = blocks.filter(|block| !block.occupied && block.size_bytes >= TRIM_MINIMUM_BYTES);
        free.map(|block| block.size_bytes).sum()
    }
}
