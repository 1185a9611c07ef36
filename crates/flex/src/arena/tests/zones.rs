//! What zones are for: small blocks stay together, and nothing fails because of them.

use super::rules::{tensor, tensor_arena};
use crate::arena::blocks::NodeState;

use crate::arena::{Arena, BlockHandle, RegionOrder};

const MIB: u64 = 1 << 20;

/// A region of 64 MiB: extents of 64 KiB, small requests up to 8 KiB, large ones above 512 KiB from the low end.
fn device() -> Arena {
    tensor_arena(&[64 * MIB], RegionOrder::MostFree)
}

fn place(arena: &mut Arena, bytes: u64) -> (BlockHandle, u64) {
    let (handle, chunk) = tensor(arena, bytes).unwrap();
    (handle, chunk.address.offset_bytes)
}

#[test]
fn small_blocks_stay_together() {
    let mut arena = device();
    let mut small = Vec::new();
    for _ in 0..64 {
        small.push(place(&mut arena, 1024).1);
        place(&mut arena, MIB / 4);
    }
    let extents: std::collections::HashSet<_> = small.iter().map(|offset| offset >> 16).collect();
    assert_eq!(extents.len(), 1, "64 KiB of small blocks fill one extent");
    arena.validate().unwrap();
}

#[test]
fn large_and_middling_requests_come_from_opposite_ends() {
    let mut arena = device();
    assert_eq!(place(&mut arena, MIB).1, 0);
    assert_eq!(place(&mut arena, MIB / 4).1, 64 * MIB - MIB / 4);
    assert_eq!(place(&mut arena, MIB).1, MIB);
}

#[test]
fn free_small_memory_goes_back_in_large_pieces() {
    let mut arena = device();
    let small: Vec<_> = (0..64 * 4).map(|_| place(&mut arena, 1024).0).collect();
    for handle in small {
        arena.release(handle).unwrap();
    }
    let states: Vec<_> = arena.blocks_of(&arena.regions[0]).map(|(_, node)| node.state).collect();
    assert!(!states.contains(&NodeState::OccupiedSmall));
    let small_units: u32 = arena
        .blocks_of(&arena.regions[0])
        .filter(|(_, node)| node.state == NodeState::FreeSmall)
        .map(|(_, node)| node.size_units)
        .sum();
    assert!(small_units < 1024, "less than two extents stay: {small_units}");
    arena.validate().unwrap();
}

#[test]
fn a_small_request_takes_what_is_left_of_the_large_zone() {
    let mut arena = device();
    place(&mut arena, 64 * MIB - 4096);
    // No extent fits any more.
    for _ in 0..4 {
        place(&mut arena, 1024);
    }
    assert!(tensor(&mut arena, 1).is_err());
    arena.validate().unwrap();
}

#[test]
fn a_gap_over_both_zones_serves_a_request_and_counts_as_one() {
    let mut arena = device();
    let first = place(&mut arena, 1024).0;
    assert_eq!(arena.statistics().inactive_split.current, 2, "below and above");
    arena.release(first).unwrap();
    // The extent is free, small, and the first block of the region.
    assert_eq!(arena.blocks_of(&arena.regions[0]).count(), 2);
    assert!(arena.regions[0].is_wholly_free());
    assert_eq!(arena.statistics().largest_free_bytes, 64 * MIB);
    place(&mut arena, 64 * MIB);
    arena.validate().unwrap();
}

#[test]
fn a_wholly_free_region_leaves_in_one_piece() {
    let mut arena = device();
    let first = place(&mut arena, 1024).0;
    arena.release(first).unwrap();
    let leaving = arena.start_release_of_free_regions();
    assert_eq!(leaving.len(), 1);
    arena.validate().unwrap();
    arena.region_released(leaving[0].0);
    arena.validate().unwrap();
}
