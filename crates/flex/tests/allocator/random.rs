//! The allocator and the naive model, step by step, every invariant checked after every step.

use std::collections::BTreeSet;
use std::sync::Arc;

use flex::{
    AllocatorOptions, BlockHandle, Chunk, CompositeAddress, FlexAllocator, FlexError, RegionId, RegionOrder,
    RegionSetupError, Topology,
};
use flex_sim::{RegionIdScheme, SimulatedDevice, SimulatedOptions};
use proptest::prelude::*;

use crate::common::model::{Model, Outcome};
use crate::common::op::{Ask, Op, ops, topologies};

/// Blocks smaller than this have no page to give back.
const TRIM_MINIMUM_BYTES: u64 = 4096;

struct Run {
    allocator: FlexAllocator,
    device: Arc<SimulatedDevice>,
    model: Model,
    live: Vec<CompositeAddress>,
    freed: Vec<BlockHandle>,
    /// The indices that the device has given to regions.
    region_ids: BTreeSet<u64>,
    /// The slots of acquired regions and their ids.
    acquired: Vec<(usize, u64)>,
    can_release: bool,
    magazines: bool,
    fail_next_acquire: bool,
}

impl Run {
    fn new(topology: &Topology, region_order: RegionOrder, can_release: bool, magazines: bool) -> Run {
        let device = SimulatedDevice::new(SimulatedOptions {
            capacity_bytes: topology.total_bytes(),
            region_ids: RegionIdScheme::Index,
            can_release_regions: can_release,
            ..SimulatedOptions::default()
        });
        let device = device.unwrap();
        let options = AllocatorOptions { region_order, magazines, ..AllocatorOptions::default() };
        Run {
            allocator: FlexAllocator::new(device.clone(), topology, options).unwrap(),
            device,
            model: Model::new(topology, region_order),
            live: Vec::new(),
            freed: Vec::new(),
            region_ids: BTreeSet::new(),
            acquired: Vec::new(),
            can_release,
            magazines,
            fail_next_acquire: false,
        }
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Allocate(ask) => self.allocate(ask),
            Op::Free { pick } => self.free(*pick),
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
            }
        }
        self.check();
    }

    fn check(&self) {
        self.allocator.validate().unwrap();
        let mut statistics = self.allocator.statistics().unwrap();
        statistics.num_alloc_retries = 0;
        let expected = self.model.statistics();
        if self.magazines {
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

    fn allocate(&mut self, ask: &Ask) {
        let (outcome, refused) = self.expected(ask);
        let result = self.allocator.allocate(ask.requested_bytes, &ask.directive().unwrap());
        match (outcome, result) {
            (Outcome::Placed, Ok(allocation)) => {
                assert_eq!(allocation.size_bytes(), ask.total_bytes());
                self.model.place(ask, &self.shares(&allocation)).unwrap();
                self.live.push(allocation);
            }
            (Outcome::Exhausted, Err(FlexError::RegionSetup(RegionSetupError::Refused { .. }))) => {
                assert!(!refused.is_empty());
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
            }
            (expected, result) => panic!("{ask:?}: expected {expected:?}, got {result:?}"),
        }
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
    fn shares(&self, allocation: &CompositeAddress) -> Vec<(Chunk, u64)> {
        let regions = self.allocator.snapshot().unwrap();
        let requested = |chunk: &Chunk| {
            let region = regions.iter().find(|region| region.region_id == chunk.address.region_id)?;
            let mut blocks = region.blocks.iter();
            blocks.find(|block| block.occupied && block.offset_bytes == chunk.address.offset_bytes)
        };
        allocation.chunks().map(|chunk| (chunk, requested(&chunk).unwrap().requested_bytes)).collect()
    }

    fn free(&mut self, pick: usize) {
        if self.live.is_empty() {
            return;
        }
        let allocation = self.live.swap_remove(pick % self.live.len());
        for chunk in allocation.chunks() {
            self.model.free(&chunk).unwrap();
        }
        match allocation.into_block() {
            Ok(handle) => {
                self.allocator.free_block(handle).unwrap();
                self.freed.push(handle);
            }
            Err(interleaved) => drop(interleaved),
        }
    }

    fn expect_unknown(&self, handle: BlockHandle) {
        let error = self.allocator.free_block(handle).unwrap_err();
        assert!(matches!(error, FlexError::UnknownAllocation { .. }), "{error}");
        assert_eq!(self.allocator.block(handle).unwrap(), None);
    }

    fn empty_cache(&mut self, device_keeps: bool) {
        let leaving = if self.can_release { self.model.free_regions() } else { Vec::new() };
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

fn plans() -> impl Strategy<Value = (Topology, RegionOrder, (bool, bool), Vec<Op>)> {
    let order = prop_oneof![Just(RegionOrder::MostFree), Just(RegionOrder::LeastFree)];
    let flags = (prop::bool::weighted(0.7), any::<bool>());
    (topologies(), order, flags).prop_flat_map(|(topology, order, flags)| {
        let ops = ops(topology.domain_count(), 200);
        (Just(topology), Just(order), Just(flags), ops)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(192) })]

    #[test]
    fn random_runs_agree_with_the_model((topology, order, (can_release, magazines), ops) in plans()) {
        let mut run = Run::new(&topology, order, can_release, magazines);
        for op in &ops {
            run.step(op);
        }
        while !run.live.is_empty() {
            run.step(&Op::Free { pick: 0 });
        }
        run.step(&Op::ReleaseFreeRegions { device_keeps: false });
        prop_assert_eq!(run.device.acquired_bytes() == 0, can_release || run.acquired.is_empty());
        let pressure = run.allocator.pressure_statistics();
        prop_assert_eq!(pressure.events, pressure.failed);
        drop(run.allocator);
    }
}
