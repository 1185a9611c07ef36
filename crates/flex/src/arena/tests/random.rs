//! Random runs against a naive model, every invariant checked after every step.

use proptest::prelude::*;

use super::common::model::{Model, Outcome};
use super::common::op::{Ask, Op};
use super::common::strategies::{ops, topologies};
use crate::arena::trim::TrimCursor;
use crate::arena::zones::Zones;
use crate::arena::{Arena, BlockHandle, Chunks, RegionOrder, RegionSlot, Unplaced};
use crate::error::FlexError;
use crate::topology::Topology;
use crate::units::RegionId;

/// The arena and the model, step by step.
struct Run {
    arena: Arena,
    model: Model,
    live: Vec<Chunks>,
    freed: Vec<BlockHandle>,
    next_region_id: u64,
    fail_next_acquire: bool,
}

impl Run {
    fn new(topology: &Topology, order: RegionOrder, zones: Option<Zones>) -> Run {
        let mut arena = Arena::new(topology, order);
        if let Some(zones) = zones {
            arena.regions.iter_mut().for_each(|region| region.zones = zones);
        }
        Run {
            arena,
            model: Model::new(topology, order),
            live: Vec::new(),
            freed: Vec::new(),
            next_region_id: 1 << 32,
            fail_next_acquire: false,
        }
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Allocate(ask) => self.allocate(ask),
            Op::AllocateNear { ask, pick } => self.allocate_near(ask, *pick),
            // There is no mutex here.
            Op::Free { pick } | Op::FreeWhileLocked { pick } => self.free(*pick),
            Op::FreeAgain { pick } => {
                if !self.freed.is_empty() {
                    let stale = self.freed[pick % self.freed.len()];
                    self.expect_unknown(stale);
                }
            }
            Op::FreeUnknown { index, generation } => {
                let handle = BlockHandle { index: *index, generation: *generation };
                if !self.live.iter().flatten().any(|placed| placed.handle == handle) {
                    self.expect_unknown(handle);
                }
            }
            Op::FailNextAcquire => self.fail_next_acquire = true,
            Op::ReleaseFreeRegions { device_keeps } => self.release_free_regions(*device_keeps),
            Op::Trim { minimum_bytes } => self.trim(*minimum_bytes),
            Op::SetLimit { limit_bytes } => {
                self.arena.set_limit_bytes(*limit_bytes);
                self.model.set_limit_bytes(*limit_bytes);
            }
            Op::ResetPeak => {
                self.arena.reset_peak();
                self.model.reset_peak();
            }
            Op::ResetAccumulated => {
                self.arena.reset_accumulated();
                self.model.reset_accumulated();
            }
        }
        self.check();
    }

    fn check(&self) {
        self.arena.validate().unwrap_or_else(|violation| panic!("{violation}"));
        assert_eq!(self.arena.statistics(), self.model.statistics());
    }

    /// Holds all free blocks of a size, a few at a time; none is seen twice, none is missed, and nothing shows in the
    /// figures. A block that is returned may unite with a neighbour.
    fn trim(&mut self, minimum_bytes: u64) {
        let before = self.free_spans(minimum_bytes);
        let mut seen: Vec<(RegionId, u64, u64)> = Vec::new();
        let mut cursor = TrimCursor::default();
        loop {
            let mut held = Vec::with_capacity(3);
            self.arena.hold_free_spans(&mut cursor, minimum_bytes, &mut held);
            self.check();
            if held.is_empty() {
                break;
            }
            for span in held {
                seen.push((span.region_id, span.offset_bytes, span.size_bytes));
                self.arena.return_held_span(span);
            }
        }
        for pair in seen.windows(2) {
            assert!(pair[0].0 != pair[1].0 || pair[0].1 + pair[0].2 <= pair[1].1, "{seen:?}");
        }
        for (region, start, size_bytes) in before {
            let inside = |&&(other, offset, size): &&(RegionId, u64, u64)| {
                other == region && offset >= start && offset + size <= start + size_bytes
            };
            let held: u64 = seen.iter().filter(inside).map(|span| span.2).sum();
            assert_eq!(held, size_bytes, "{seen:?}");
        }
    }

    fn free_spans(&self, minimum_bytes: u64) -> Vec<(RegionId, u64, u64)> {
        let spans = self.arena.snapshot().into_iter().flat_map(|region| {
            let free = region.blocks.into_iter().filter(|block| !block.occupied);
            free.map(move |block| (region.region_id, block.offset_bytes, block.size_bytes))
        });
        spans.filter(|(.., size_bytes)| *size_bytes >= minimum_bytes).collect()
    }

    fn allocate(&mut self, ask: &Ask) {
        let directive = ask.directive().unwrap();
        let mut request = self.arena.check(ask.requested_bytes, &directive).unwrap();
        let mut refused = Vec::new();
        // Either way in gives the same.
        if ask.requested_bytes.is_multiple_of(2)
            && let Some(placed) = self.arena.place_at_once(ask.requested_bytes, &directive)
        {
            assert_eq!(self.model.outcome(ask, &refused), Outcome::Placed, "{ask:?}");
            return self.record(ask, Chunks::from_elem(placed, 1));
        }
        loop {
            let expected = self.model.outcome(ask, &refused);
            let before = self.arena.statistics();
            let slot = match self.arena.place(&request) {
                Ok(chunks) => {
                    assert_eq!(expected, Outcome::Placed, "{ask:?}");
                    return self.record(ask, chunks);
                }
                Err(Unplaced::NeedsRegion(slot)) => {
                    assert_eq!(expected, Outcome::NeedsRegion(usize::from(slot.0)), "{ask:?}");
                    slot
                }
                Err(unplaced) => {
                    let outcome = match unplaced {
                        Unplaced::Impossible => Outcome::Impossible,
                        _ => Outcome::Exhausted,
                    };
                    assert_ne!(unplaced, Unplaced::RegionBusy);
                    assert_eq!(expected, outcome, "{ask:?}");
                    assert_eq!(self.arena.statistics(), before, "a failure leaves no trace");
                    self.check_figures(ask, &request, &refused);
                    self.arena.count_out_of_memory();
                    self.model.count_out_of_memory();
                    return;
                }
            };
            assert_eq!(self.arena.statistics(), before, "a rolled-back request leaves no trace");
            self.arena.validate().unwrap_or_else(|violation| panic!("{violation}"));
            self.acquire(slot);
            if self.model.outcome(ask, &refused) == expected {
                request.refused.push(slot);
                refused.push(usize::from(slot.0));
            }
        }
    }

    fn allocate_near(&mut self, ask: &Ask, pick: usize) {
        let mut ask = ask.clone();
        if !self.live.is_empty() {
            let near = &self.live[pick % self.live.len()];
            ask.domains = near.iter().map(|placed| placed.chunk.domain).collect();
        }
        if ask.refusal(u32::MAX).is_none() {
            self.allocate(&ask);
        }
    }

    fn acquire(&mut self, slot: RegionSlot) {
        if std::mem::take(&mut self.fail_next_acquire) {
            self.arena.region_failed(slot);
            return;
        }
        let region_id = RegionId(self.next_region_id);
        self.next_region_id += 1;
        self.arena.region_acquired(slot, region_id);
        self.model.acquire(usize::from(slot.0), region_id);
    }

    fn record(&mut self, ask: &Ask, chunks: Chunks) {
        let shares: Vec<_> = chunks
            .iter()
            .map(|placed| {
                let (chunk, requested_bytes) = self.arena.lookup(placed.handle).unwrap();
                assert_eq!(chunk, placed.chunk);
                (chunk, requested_bytes)
            })
            .collect();
        self.model.place(ask, &shares).unwrap_or_else(|violation| panic!("{violation}"));
        self.live.push(chunks);
    }

    fn check_figures(&self, ask: &Ask, request: &crate::arena::Request, refused: &[usize]) {
        let figures = self.arena.figures(request);
        let tuple = (
            figures.capacity_bytes,
            figures.free_bytes,
            figures.largest_free_bytes,
            figures.largest_region_bytes,
        );
        assert_eq!(tuple, self.model.figures(ask, refused), "{ask:?}");
    }

    fn free(&mut self, pick: usize) {
        if self.live.is_empty() {
            return;
        }
        let chunks = self.live.swap_remove(pick % self.live.len());
        for placed in chunks {
            let (_, requested_bytes) = self.arena.lookup(placed.handle).unwrap();
            let released = self.arena.release(placed.handle).unwrap();
            assert_eq!(
                (released.size_bytes, released.requested_bytes),
                (placed.chunk.size_bytes, requested_bytes)
            );
            self.model.free(&placed.chunk).unwrap_or_else(|violation| panic!("{violation}"));
            self.freed.push(placed.handle);
        }
    }

    fn expect_unknown(&mut self, handle: BlockHandle) {
        let before = self.arena.statistics();
        let BlockHandle { index, generation } = handle;
        assert_eq!(self.arena.release(handle), Err(FlexError::UnknownAllocation { index, generation }));
        assert_eq!(self.arena.lookup(handle), None);
        assert_eq!(self.arena.statistics(), before);
    }

    fn release_free_regions(&mut self, device_keeps: bool) {
        let leaving = self.arena.start_release_of_free_regions();
        let slots: Vec<usize> = leaving.iter().map(|(slot, _)| usize::from(slot.0)).collect();
        assert_eq!(slots, self.model.free_regions());
        self.check();
        for (slot, _) in leaving {
            if device_keeps {
                self.arena.region_kept(slot);
            } else {
                self.arena.region_released(slot);
                self.model.return_region(usize::from(slot.0));
            }
        }
    }
}

/// Zones as a much larger region has them, so that small ones use them too; or their own.
fn zones() -> impl Strategy<Value = Option<Zones>> {
    let large =
        (0_u32..6, 0_u32..4, 1_u32..4, 0_u32..200).prop_map(|(shift, small, release, high_end)| Zones {
            extent_units: 1 << shift,
            small_units: (1 << shift) >> small,
            keep_units: Zones::keep_units(release << shift),
            high_end_units: high_end,
        });
    prop::option::weighted(0.7, large)
}

type Plan = (Topology, RegionOrder, Option<Zones>, Vec<Op>);

fn plans() -> impl Strategy<Value = Plan> {
    let order = prop_oneof![Just(RegionOrder::MostFree), Just(RegionOrder::LeastFree)];
    (topologies(), order, zones()).prop_flat_map(|(topology, order, zones)| {
        let ops = ops(topology.domain_count(), 250);
        (Just(topology), Just(order), Just(zones), ops)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_runs_agree_with_the_model((topology, order, zones, ops) in plans()) {
        let mut run = Run::new(&topology, order, zones);
        for op in &ops {
            run.step(op);
        }
        while !run.live.is_empty() {
            run.step(&Op::Free { pick: 0 });
        }
        run.step(&Op::ReleaseFreeRegions { device_keeps: false });
        prop_assert_eq!(run.arena.statistics().reserved_bytes.current, 0);
        prop_assert_eq!(run.arena.region_ids().count(), 0);
    }
}
