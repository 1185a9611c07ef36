//! The rules one by one.

use crate::address::Chunk;
use crate::arena::blocks::BlockHandle;
use crate::arena::snapshot::{BlockSnapshot, RegionSnapshot};
use crate::arena::trim::TrimCursor;
use crate::arena::{Arena, Chunks, Figures, RegionOrder, RegionSlot, Request, Unplaced};
use crate::directive::{AllocationDirective, MemoryType, PlacementPolicy};
use crate::error::FlexError;
use crate::topology::{RegionLayout, Topology};
use crate::units::{DomainId, RegionId};

const GIB: u64 = 1 << 30;

fn region(domain: u32, memory_type: MemoryType, size_bytes: u64) -> RegionLayout {
    RegionLayout { domain: DomainId(domain), memory_type, size_bytes }
}

fn arena(regions: Vec<RegionLayout>, order: RegionOrder) -> Arena {
    Arena::new(&Topology::custom(regions).unwrap(), order)
}

/// An arena of tensor regions in domain 0.
pub(super) fn tensor_arena(sizes: &[u64], order: RegionOrder) -> Arena {
    arena(sizes.iter().map(|&size| region(0, MemoryType::Tensor, size)).collect(), order)
}

fn interleaved(domains: &[u32]) -> AllocationDirective {
    AllocationDirective::builder()
        .policy(PlacementPolicy::Interleave)
        .domains(domains.iter().copied().map(DomainId))
        .build()
        .unwrap()
}

fn bound(domains: &[u32]) -> AllocationDirective {
    AllocationDirective::builder().domains(domains.iter().copied().map(DomainId)).build().unwrap()
}

fn programs() -> AllocationDirective {
    AllocationDirective::builder().domains([DomainId(0)]).memory_type(MemoryType::Program).build().unwrap()
}

/// Places a request, acquiring regions as needed; the id of a region is its slot.
fn place(arena: &mut Arena, request: &Request) -> Result<Chunks, Unplaced> {
    loop {
        match arena.place(request) {
            Err(Unplaced::NeedsRegion(slot)) => arena.region_acquired(slot, RegionId(slot.0.into())),
            other => {
                arena.validate().unwrap_or_else(|violation| panic!("{violation}"));
                return other;
            }
        }
    }
}

fn allocate(arena: &mut Arena, bytes: u64, directive: &AllocationDirective) -> Result<Chunks, Unplaced> {
    let request = arena.check(bytes, directive).unwrap();
    place(arena, &request)
}

pub(super) fn tensor(arena: &mut Arena, bytes: u64) -> Result<(BlockHandle, Chunk), Unplaced> {
    allocate(arena, bytes, &AllocationDirective::default()).map(|chunks| (chunks[0].handle, chunks[0].chunk))
}

/// Where chunks lie: slot and offset.
fn place_of(chunk: &Chunk) -> (u64, u64) {
    (chunk.address.region_id.0, chunk.address.offset_bytes)
}

#[test]
fn the_hardware_case_ends_with_the_right_figures() {
    let topology = Topology::spyre(118_111_600_635, 7, 1).unwrap();
    assert_eq!(topology.regions()[1].size_bytes, 16_873_085_805);
    assert_eq!(topology.regions()[1].usable_bytes(), 16_873_085_696);
    let mut arena = Arena::new(&topology, RegionOrder::MostFree);
    let request = arena.check(2 * GIB, &AllocationDirective::default()).unwrap();
    for _ in 0..42 {
        place(&mut arena, &request).unwrap();
    }
    assert_eq!(place(&mut arena, &request), Err(Unplaced::Exhausted));
    assert_eq!(
        arena.figures(&request),
        Figures {
            capacity_bytes: 6 * 16_873_085_696,
            free_bytes: 11_044_200_960,
            largest_free_bytes: 1_840_700_160,
            largest_region_bytes: 16_873_085_696,
        }
    );
    assert_eq!(arena.statistics().allocation.current, 42);
}

#[test]
fn sizes_round_up_and_the_slack_is_remembered() {
    let mut arena = tensor_arena(&[4096], RegionOrder::MostFree);
    for (bytes, rounded) in [(1, 128), (127, 128), (128, 128), (129, 256)] {
        let (handle, chunk) = tensor(&mut arena, bytes).unwrap();
        assert_eq!(chunk.size_bytes, rounded);
        assert_eq!(arena.lookup(handle), Some((chunk, bytes)));
    }
    let statistics = arena.statistics();
    assert_eq!((statistics.allocated_bytes.current, statistics.requested_bytes.current), (640, 385));
}

#[test]
fn requests_are_checked() {
    let arena = arena(
        vec![region(0, MemoryType::Tensor, 4096), region(1, MemoryType::Tensor, 4096)],
        RegionOrder::MostFree,
    );
    let check = |bytes, directive: &AllocationDirective| arena.check(bytes, directive).unwrap_err();
    let invalid = |requested_bytes, chunk_count| FlexError::InvalidSize { requested_bytes, chunk_count };
    assert_eq!(check(0, &bound(&[0])), invalid(0, 1));
    assert_eq!(check(u64::MAX, &bound(&[0])), invalid(u64::MAX, 1));
    assert_eq!(check(u64::MAX, &interleaved(&[0, 1])), invalid(u64::MAX, 2));
    assert_eq!(check(1, &bound(&[1, 2])), FlexError::UnknownDomain { domain: DomainId(2), domain_count: 2 });
}

#[test]
fn sizes_no_region_can_have_are_impossible() {
    let mut arena = tensor_arena(&[4096, 8192], RegionOrder::MostFree);
    assert!(tensor(&mut arena, 8192).is_ok());
    assert_eq!(tensor(&mut arena, 8192).unwrap_err(), Unplaced::Exhausted);
    assert_eq!(tensor(&mut arena, 8193).unwrap_err(), Unplaced::Impossible);
    // More units than 32 bits hold.
    assert_eq!(tensor(&mut arena, 1 << 62).unwrap_err(), Unplaced::Impossible);
    // No region of the type.
    assert_eq!(allocate(&mut arena, 1, &programs()), Err(Unplaced::Impossible));
}

#[test]
fn a_domain_listed_twice_needs_room_for_two_chunks() {
    let regions = vec![region(0, MemoryType::Tensor, 4096), region(1, MemoryType::Tensor, 4096)];
    let mut arena = arena(regions, RegionOrder::MostFree);
    assert_eq!(allocate(&mut arena, 4096 * 3, &interleaved(&[0, 0, 1])), Err(Unplaced::Impossible));
    let chunks = allocate(&mut arena, 2048 * 3, &interleaved(&[0, 1, 0])).unwrap();
    let places: Vec<_> = chunks.iter().map(|placed| place_of(&placed.chunk)).collect();
    assert_eq!(places, [(0, 0), (1, 0), (0, 2048)]);
}

#[test]
fn interleaved_shares_add_up_and_chunks_follow_the_listed_order() {
    let regions = (0..4).map(|domain| region(domain, MemoryType::Tensor, 4096)).collect();
    let mut arena = arena(regions, RegionOrder::MostFree);
    for bytes in [1, 3, 4, 128, 511, 512, 513, 4001] {
        let chunks = allocate(&mut arena, bytes, &interleaved(&[3, 1, 0, 2])).unwrap();
        let domains: Vec<u32> = chunks.iter().map(|placed| placed.chunk.domain.0).collect();
        assert_eq!(domains, [3, 1, 0, 2]);
        let requested: u64 = chunks.iter().map(|placed| arena.lookup(placed.handle).unwrap().1).sum();
        assert_eq!(requested, bytes);
        for placed in &chunks {
            assert_eq!(placed.chunk.size_bytes, bytes.div_ceil(4).next_multiple_of(128));
            arena.release(placed.handle).unwrap();
        }
    }
    assert_eq!(arena.statistics().requested_bytes.current, 0);
}

#[test]
fn a_request_that_cannot_be_completed_leaves_no_trace() {
    let regions = vec![region(0, MemoryType::Tensor, 4096), region(1, MemoryType::Tensor, 1024)];
    let mut arena = arena(regions, RegionOrder::MostFree);
    let whole = allocate(&mut arena, 1024, &bound(&[1])).unwrap();
    allocate(&mut arena, 128, &bound(&[0])).unwrap();
    let before = arena.statistics();
    let snapshot = arena.snapshot();
    assert_eq!(allocate(&mut arena, 2048, &interleaved(&[0, 1])), Err(Unplaced::Exhausted));
    assert_eq!(arena.statistics(), before);
    assert_eq!(arena.snapshot(), snapshot);
    arena.release(whole[0].handle).unwrap();
    allocate(&mut arena, 2048, &interleaved(&[0, 1])).unwrap();
}

#[test]
fn a_bound_request_takes_any_listed_domain() {
    let regions = (0..3).map(|domain| region(domain, MemoryType::Tensor, 1024)).collect();
    let mut arena = arena(regions, RegionOrder::MostFree);
    let domains: Vec<u32> =
        (0..2).map(|_| allocate(&mut arena, 1024, &bound(&[2, 1])).unwrap()[0].chunk.domain.0).collect();
    assert_eq!(domains, [1, 2]);
    assert_eq!(allocate(&mut arena, 1024, &bound(&[2, 1])), Err(Unplaced::Exhausted));
}

#[test]
fn memory_types_never_mix() {
    let regions = vec![region(0, MemoryType::Program, 1024), region(0, MemoryType::Tensor, 1024)];
    let mut arena = arena(regions, RegionOrder::MostFree);
    let chunks = allocate(&mut arena, 1024, &programs()).unwrap();
    assert_eq!(place_of(&chunks[0].chunk), (0, 0));
    assert_eq!(allocate(&mut arena, 128, &programs()), Err(Unplaced::Exhausted));
    let statistics = arena.statistics();
    assert_eq!((statistics.allocated_bytes.current, statistics.capacity_bytes), (0, 1024));
    assert_eq!(statistics.program.allocated_bytes.current, 1024);
    assert_eq!((statistics.program.capacity_bytes, statistics.program.free_bytes), (1024, 0));
    assert_eq!(place_of(&tensor(&mut arena, 1024).unwrap().1), (1, 0));
    let released = arena.release(chunks[0].handle).unwrap();
    assert_eq!(released.memory_type, MemoryType::Program);
}

/// Three acquired regions filled so that 1024, 2048 and 2048 bytes are free.
fn three_regions(order: RegionOrder) -> Arena {
    let mut arena = tensor_arena(&[8192, 8192, 8192], order);
    let whole: Vec<_> = (0..3).map(|_| tensor(&mut arena, 8192).unwrap()).collect();
    for (handle, _) in whole {
        arena.release(handle).unwrap();
    }
    for slot in 0..3 {
        assert_eq!(place_of(&tensor(&mut arena, 6144).unwrap().1), (slot, 0));
    }
    // All have 2048 left, and the tie goes to the first.
    assert_eq!(place_of(&tensor(&mut arena, 1024).unwrap().1), (0, 6144));
    arena
}

#[test]
fn regions_are_tried_by_their_free_bytes_then_by_slot() {
    let mut most = three_regions(RegionOrder::MostFree);
    assert_eq!(place_of(&tensor(&mut most, 128).unwrap().1), (1, 6144));
    assert_eq!(place_of(&tensor(&mut most, 128).unwrap().1), (2, 6144));
    let mut least = three_regions(RegionOrder::LeastFree);
    assert_eq!(place_of(&tensor(&mut least, 128).unwrap().1), (0, 7168));
    // Too large for what the fullest has left.
    assert_eq!(place_of(&tensor(&mut least, 1024).unwrap().1), (1, 6144));
}

#[test]
fn frees_coalesce_on_both_sides() {
    let mut arena = tensor_arena(&[4096], RegionOrder::MostFree);
    let handles: Vec<_> = (0..4).map(|_| tensor(&mut arena, 1024).unwrap().0).collect();
    for index in [0, 2, 1] {
        arena.release(handles[index]).unwrap();
        arena.validate().unwrap_or_else(|violation| panic!("{violation}"));
    }
    let blocks = &arena.snapshot()[0].blocks;
    assert_eq!(blocks.len(), 2);
    assert_eq!((blocks[0].size_bytes, blocks[0].occupied), (3072, false));
    arena.release(handles[3]).unwrap();
    assert_eq!(tensor(&mut arena, 4096).unwrap().1.address.offset_bytes, 0);
}

#[test]
fn double_and_unknown_frees_change_nothing() {
    let mut arena = tensor_arena(&[4096], RegionOrder::MostFree);
    let (stale, _) = tensor(&mut arena, 128).unwrap();
    arena.release(stale).unwrap();
    // The same block is in use again, by someone else.
    let (live, _) = tensor(&mut arena, 128).unwrap();
    assert_eq!(stale.index, live.index);
    let before = (arena.statistics(), arena.snapshot());
    let unknown = [stale, BlockHandle { index: 0, generation: 1 }, BlockHandle { index: 999, generation: 1 }];
    for handle in unknown {
        let BlockHandle { index, generation } = handle;
        assert_eq!(arena.release(handle), Err(FlexError::UnknownAllocation { index, generation }));
        assert_eq!(arena.lookup(handle), None);
    }
    assert_eq!((arena.statistics(), arena.snapshot()), before);
    arena.release(live).unwrap();
}

#[test]
fn regions_are_acquired_one_by_one_when_needed() {
    let mut arena = tensor_arena(&[1024, 4096], RegionOrder::MostFree);
    let small = arena.check(1024, &AllocationDirective::default()).unwrap();
    let large = arena.check(4096, &AllocationDirective::default()).unwrap();
    assert_eq!(arena.place(&small), Err(Unplaced::NeedsRegion(RegionSlot(0))));
    assert_eq!(arena.region_to_acquire(RegionSlot(0)), (1024, DomainId(0), MemoryType::Tensor));
    // Another thread does not wait while there is a region left to acquire, and does when there is none.
    assert_eq!(arena.place(&large), Err(Unplaced::NeedsRegion(RegionSlot(1))));
    assert_eq!(arena.place(&small), Err(Unplaced::RegionBusy));
    assert_eq!(arena.figures(&small).free_bytes, 5120);
    arena.region_acquired(RegionSlot(1), RegionId(1));
    arena.place(&large).unwrap();
    assert_eq!(arena.place(&large), Err(Unplaced::Exhausted));
    arena.region_acquired(RegionSlot(0), RegionId(0));
    arena.place(&small).unwrap();
    let statistics = arena.statistics();
    assert_eq!((statistics.segment.current, statistics.reserved_bytes.current), (2, 5120));
}

#[test]
fn a_refused_region_is_not_asked_for_again_by_the_same_request() {
    let mut arena = tensor_arena(&[1024, 1024], RegionOrder::MostFree);
    let mut request = arena.check(1024, &AllocationDirective::default()).unwrap();
    for slot in [0, 1].map(RegionSlot) {
        assert_eq!(arena.place(&request), Err(Unplaced::NeedsRegion(slot)));
        arena.region_failed(slot);
        request.refused.push(slot);
    }
    assert_eq!(arena.place(&request), Err(Unplaced::Exhausted));
    let figures = arena.figures(&request);
    assert_eq!((figures.capacity_bytes, figures.free_bytes, figures.largest_free_bytes), (2048, 0, 0));
    // Others may try, and what they acquire serves this request too.
    tensor(&mut arena, 128).unwrap();
    let mut small = arena.check(1, &bound(&[0])).unwrap();
    small.refused.clone_from(&request.refused);
    arena.place(&small).unwrap();
    assert_eq!(arena.figures(&request).free_bytes, 1024 - 2 * 128);
}

#[test]
fn wholly_free_regions_leave_and_may_be_kept() {
    let mut arena = tensor_arena(&[1024, 1024], RegionOrder::MostFree);
    let (first, _) = tensor(&mut arena, 1024).unwrap();
    let (second, _) = tensor(&mut arena, 512).unwrap();
    arena.release(first).unwrap();
    assert_eq!(arena.start_release_of_free_regions().to_vec(), [(RegionSlot(0), RegionId(0))]);
    assert!(arena.start_release_of_free_regions().is_empty());
    let whole = arena.check(1024, &AllocationDirective::default()).unwrap();
    assert_eq!(arena.place(&whole), Err(Unplaced::RegionBusy));
    arena.validate().unwrap_or_else(|violation| panic!("{violation}"));
    assert_eq!(arena.region_ids().count(), 2);
    arena.region_kept(RegionSlot(0));
    assert_eq!(arena.place(&whole).unwrap().len(), 1);
    arena.release(second).unwrap();
    assert_eq!(arena.start_release_of_free_regions().to_vec(), [(RegionSlot(1), RegionId(1))]);
    arena.region_released(RegionSlot(1));
    let reserved = arena.statistics().reserved_bytes;
    assert_eq!((reserved.current, reserved.peak, reserved.freed), (1024, 2048, 1024));
    assert_eq!(arena.place(&whole), Err(Unplaced::NeedsRegion(RegionSlot(1))));
}

#[test]
fn handles_do_not_outlive_the_regions_nodes() {
    let mut arena = tensor_arena(&[1024], RegionOrder::MostFree);
    let (handle, _) = tensor(&mut arena, 1024).unwrap();
    arena.release(handle).unwrap();
    for (slot, _) in arena.start_release_of_free_regions() {
        arena.region_released(slot);
    }
    assert_eq!(arena.lookup(handle), None);
    let (again, _) = tensor(&mut arena, 1024).unwrap();
    assert_ne!(handle, again);
    assert!(arena.release(handle).is_err());
}

#[test]
fn the_limit_caps_tensor_memory_only() {
    let regions = vec![region(0, MemoryType::Tensor, 4096), region(0, MemoryType::Program, 4096)];
    let mut arena = arena(regions, RegionOrder::MostFree);
    arena.set_limit_bytes(Some(1000));
    let (handle, _) = tensor(&mut arena, 512).unwrap();
    // 488 are left of the limit, three units.
    assert_eq!(tensor(&mut arena, 385).unwrap_err(), Unplaced::Exhausted);
    assert_eq!(tensor(&mut arena, 897).unwrap_err(), Unplaced::Impossible);
    let request = arena.check(385, &AllocationDirective::default()).unwrap();
    assert!(arena.is_possible(&request));
    let figures = arena.figures(&request);
    assert_eq!((figures.free_bytes, figures.largest_free_bytes, figures.capacity_bytes), (384, 384, 4096));
    allocate(&mut arena, 4096, &programs()).unwrap();
    tensor(&mut arena, 384).unwrap();
    arena.set_limit_bytes(Some(256));
    assert_eq!(arena.figures(&request).free_bytes, 0);
    arena.release(handle).unwrap();
    assert_eq!(tensor(&mut arena, 1).unwrap_err(), Unplaced::Exhausted);
    arena.set_limit_bytes(None);
    tensor(&mut arena, 3200).unwrap();
}

#[test]
fn free_beside_occupied_blocks_is_inactive_split() {
    let mut arena = tensor_arena(&[4096, 1024], RegionOrder::LeastFree);
    let handles: Vec<_> = (0..4).map(|_| tensor(&mut arena, 1024).unwrap().0).collect();
    arena.release(handles[1]).unwrap();
    let statistics = arena.statistics();
    assert_eq!((statistics.inactive_split.current, statistics.inactive_split_bytes.current), (1, 1024));
    arena.release(handles[3]).unwrap();
    let statistics = arena.statistics();
    assert_eq!((statistics.inactive_split.current, statistics.inactive_split_bytes.current), (2, 2048));
    for index in [0, 2] {
        arena.release(handles[index]).unwrap();
    }
    let statistics = arena.statistics();
    assert_eq!((statistics.inactive_split.current, statistics.inactive_split_bytes.current), (0, 0));
    assert_eq!(
        (statistics.active, statistics.active_bytes),
        (statistics.allocation, statistics.allocated_bytes)
    );
}

#[test]
fn peaks_and_sums_start_again_apart() {
    let mut arena = tensor_arena(&[4096], RegionOrder::MostFree);
    let (handle, _) = tensor(&mut arena, 1024).unwrap();
    tensor(&mut arena, 512).unwrap();
    arena.release(handle).unwrap();
    arena.count_out_of_memory();
    arena.count_retry();
    arena.reset_peak();
    let bytes = arena.statistics().allocated_bytes;
    assert_eq!((bytes.current, bytes.peak, bytes.allocated, bytes.freed), (512, 512, 1536, 1024));
    let statistics = arena.statistics();
    assert_eq!((statistics.num_ooms, statistics.num_alloc_retries), (1, 1));
    arena.reset_accumulated();
    let statistics = arena.statistics();
    assert_eq!((statistics.allocated_bytes.allocated, statistics.allocated_bytes.freed), (0, 0));
    assert_eq!((statistics.num_ooms, statistics.num_alloc_retries), (0, 0));
}

#[test]
fn the_snapshot_lists_blocks_in_order() {
    let mut arena = tensor_arena(&[1100, 1024], RegionOrder::MostFree);
    tensor(&mut arena, 100).unwrap();
    let block = |offset_bytes, size_bytes, requested_bytes, occupied| BlockSnapshot {
        offset_bytes,
        size_bytes,
        requested_bytes,
        occupied,
        freeing: false,
        site: 0,
        allocated_ns: 0,
    };
    assert_eq!(
        arena.snapshot(),
        [RegionSnapshot {
            region_id: RegionId(0),
            domain: DomainId(0),
            memory_type: MemoryType::Tensor,
            size_bytes: 1024,
            blocks: vec![block(0, 128, 100, true), block(128, 896, 0, false)],
        }]
    );
}

#[test]
fn held_blocks_are_free_but_not_to_be_had() {
    let mut arena = tensor_arena(&[4096], RegionOrder::MostFree);
    let handles: Vec<_> = (0..4).map(|_| tensor(&mut arena, 1024).unwrap().0).collect();
    arena.release(handles[1]).unwrap();
    let mut held = Vec::with_capacity(8);
    arena.hold_free_spans(&mut TrimCursor::default(), 0, &mut held);
    assert_eq!((held.len(), held[0].offset_bytes, held[0].size_bytes), (1, 1024, 1024));
    assert_eq!(tensor(&mut arena, 512).unwrap_err(), Unplaced::RegionBusy);
    let statistics = arena.statistics();
    assert_eq!((statistics.free_bytes, statistics.largest_free_bytes), (1024, 1024));
    assert_eq!(arena.snapshot()[0].blocks.iter().filter(|block| block.occupied).count(), 3);
    // Neighbours that are freed meanwhile coalesce with it when it is returned.
    for index in [0, 2, 3] {
        arena.release(handles[index]).unwrap();
        arena.validate().unwrap_or_else(|violation| panic!("{violation}"));
    }
    assert!(arena.start_release_of_free_regions().is_empty(), "a region with held blocks stays");
    arena.return_held_span(held[0]);
    arena.validate().unwrap_or_else(|violation| panic!("{violation}"));
    assert_eq!(arena.snapshot()[0].blocks.len(), 1);
    tensor(&mut arena, 4096).unwrap();
}

#[test]
fn a_hold_takes_no_more_than_its_list_has_room_for() {
    let mut arena = tensor_arena(&[4096], RegionOrder::MostFree);
    let handles: Vec<_> = (0..4).map(|_| tensor(&mut arena, 1024).unwrap().0).collect();
    arena.release(handles[0]).unwrap();
    arena.release(handles[2]).unwrap();
    let mut cursor = TrimCursor::default();
    let mut held = Vec::with_capacity(1);
    for expected_offset in [0, 2048] {
        arena.hold_free_spans(&mut cursor, 0, &mut held);
        assert_eq!((held.len(), held.capacity(), held[0].offset_bytes), (1, 1, expected_offset));
        arena.return_held_span(held.remove(0));
    }
    arena.hold_free_spans(&mut cursor, 0, &mut held);
    assert!(held.is_empty());
}

#[test]
fn as_many_regions_as_a_topology_may_have() {
    let mut arena = tensor_arena(&[128; crate::topology::MAX_REGIONS], RegionOrder::MostFree);
    for slot in 0..crate::topology::MAX_REGIONS as u64 {
        let request = arena.check(128, &AllocationDirective::default()).unwrap();
        let Err(Unplaced::NeedsRegion(needed)) = arena.place(&request) else { panic!("region {slot}") };
        arena.region_acquired(needed, RegionId(slot));
        assert_eq!(place_of(&arena.place(&request).unwrap()[0].chunk), (slot, 0));
    }
    assert_eq!(tensor(&mut arena, 1).unwrap_err(), Unplaced::Exhausted);
}

#[test]
fn the_largest_region_works_to_its_last_unit() {
    let mut arena = tensor_arena(&[crate::topology::MAX_REGION_BYTES], RegionOrder::MostFree);
    let (handle, chunk) = tensor(&mut arena, crate::topology::MAX_REGION_BYTES).unwrap();
    assert_eq!(chunk.size_bytes, 549_755_813_760);
    arena.release(handle).unwrap();
    tensor(&mut arena, crate::topology::MAX_REGION_BYTES - 128).unwrap();
    assert_eq!(tensor(&mut arena, 128).unwrap().1.address.offset_bytes, 549_755_813_760 - 128);
}

#[test]
fn the_steady_state_adds_no_metadata() {
    let mut arena = tensor_arena(&[1 << 20], RegionOrder::MostFree);
    let handles: Vec<_> = (0..200).map(|_| tensor(&mut arena, 1024).unwrap().0).collect();
    let nodes = arena.blocks.len();
    for handle in handles {
        arena.release(handle).unwrap();
    }
    for _ in 0..200 {
        tensor(&mut arena, 1024).unwrap();
    }
    assert_eq!(arena.blocks.len(), nodes);
}
