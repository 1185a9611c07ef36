//! The rules of the model, one by one.

use super::*;

fn model() -> CachingAllocator {
    CachingAllocator::new(100 * MIB)
}

#[test]
fn segments_have_the_sizes_of_their_class() {
    for (bytes, segment) in [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 1, 10 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
    ] {
        let mut model = model();
        model.allocate(bytes, 0).unwrap();
        assert_eq!(model.reserved, segment, "{bytes}");
    }
}

#[test]
fn small_rests_are_split_off_and_large_ones_only_above_a_mebibyte() {
    let mut model = model();
    let small = model.allocate(1, 0).unwrap();
    assert_eq!(model.size_bytes(small), ROUND);
    let own = model.allocate(11 * MIB, 0).unwrap();
    assert_eq!(model.size_bytes(own), 12 * MIB, "1 MiB is not split off");
    let shared = model.allocate(2 * MIB, 0).unwrap();
    assert_eq!(model.size_bytes(shared), 2 * MIB);
}

#[test]
fn the_tightest_cached_block_is_taken_before_a_new_segment() {
    let mut model = model();
    let [large, tight] = [30 * MIB, 14 * MIB].map(|bytes| model.allocate(bytes, 0).unwrap());
    model.free(large);
    model.free(tight);
    assert_eq!(model.allocate(13 * MIB, 0), Some(tight));
    assert_eq!(model.reserved, 44 * MIB);
}

#[test]
fn whole_segments_are_given_back_when_the_device_is_full() {
    let mut model = model();
    let kept = model.allocate(MIB, 0).unwrap();
    let first = model.allocate(60 * MIB, 0).unwrap();
    assert!(model.allocate(60 * MIB + 1, 0).is_none());
    model.free(first);
    assert!(model.allocate(90 * MIB, 0).is_some());
    assert_eq!(model.reserved, 92 * MIB, "the small segment is in use");
    model.free(kept);
    assert!(model.allocate(10 * MIB, 0).is_some(), "by giving back the small segment");
}

#[test]
fn a_block_serves_its_own_stream_alone() {
    let mut model = model();
    let block = model.allocate(10 * MIB, 1).unwrap();
    model.free(block);
    assert_ne!(model.allocate(10 * MIB, 2), Some(block));
    assert_eq!(model.allocate(10 * MIB, 1), Some(block));
    assert_eq!(model.reserved_bytes(), 20 * MIB);
}

#[test]
fn sizes_beyond_everything_are_refused() {
    let mut model = CachingAllocator::new(u64::MAX);
    assert!(model.allocate(MIB, 0).is_some());
    assert_eq!(model.allocate(u64::MAX, 0), None);
    assert_eq!(model.allocate(u64::MAX - 1024 * MIB, 0).map(|_| ()), Some(()));
}

fn growing(capacity: u64) -> CachingAllocator {
    CachingAllocator::with_segments(capacity, Segments::Expandable)
}

#[test]
fn segments_grow_in_the_steps_of_their_class() {
    let mut model = growing(100 * MIB);
    let small = model.allocate(1, 0).unwrap();
    assert_eq!(model.reserved_bytes(), 2 * MIB);
    let first = model.allocate(15 * MIB, 0).unwrap();
    assert_eq!(model.reserved_bytes(), 22 * MIB);
    let second = model.allocate(30 * MIB, 0).unwrap();
    assert_eq!(model.reserved_bytes(), 62 * MIB, "5 MiB were there");
    assert_eq!(model.offset_bytes(second), model.offset_bytes(first) + 15 * MIB, "one behind the other");
    assert_eq!(model.size_bytes(small), ROUND);
    // The rest of the second, of 15 MiB, is split off down to 512 bytes.
    let third = model.allocate(15 * MIB - 1024, 0).unwrap();
    assert_eq!((model.size_bytes(third), model.reserved_bytes()), (15 * MIB - 1024, 62 * MIB));
}

#[test]
fn a_hole_is_filled_before_the_end_grows() {
    let mut model = growing(100 * MIB);
    let [hole, _kept] = [20 * MIB, 20 * MIB].map(|bytes| model.allocate(bytes, 0).unwrap());
    model.free(hole);
    assert_eq!(model.allocate(18 * MIB, 0), Some(hole));
    assert_eq!(model.reserved_bytes(), 40 * MIB);
}

#[test]
fn of_two_free_blocks_the_one_that_can_grow_less_is_taken() {
    let mut model = growing(200 * MIB);
    let [hole, _kept] = [30 * MIB, 10 * MIB].map(|bytes| model.allocate(bytes, 0).unwrap());
    let end = model.allocate(20 * MIB, 0).unwrap();
    model.free(hole);
    model.free(end);
    // 20 MiB at the end would fit more tightly, but more could grow there.
    assert_eq!(model.allocate(15 * MIB, 0), Some(hole));
}

#[test]
fn memory_moves_from_a_hole_to_the_end_when_the_device_is_full() {
    let mut model = growing(100 * MIB);
    let [hole, kept] = [40 * MIB, 60 * MIB].map(|bytes| model.allocate(bytes, 0).unwrap());
    model.free(hole);
    let moved = model.allocate(40 * MIB + 1, 0);
    assert_eq!(moved, None, "a step more than there is");
    assert_eq!(model.reserved_bytes(), 60 * MIB, "the hole is unmapped");
    assert_eq!((model.free_bytes(), model.largest_free_bytes()), (40 * MIB, 40 * MIB));
    // The addresses of the hole and those behind the kept block have room; the lowest are taken.
    let back = model.allocate(40 * MIB, 0).unwrap();
    assert_eq!(model.offset_bytes(back), 0);
    model.free(back);
    model.free(kept);
    assert_eq!(model.largest_free_bytes(), 100 * MIB);
    let all = model.allocate(100 * MIB, 0).unwrap();
    assert_eq!((model.offset_bytes(all), model.reserved_bytes()), (0, 100 * MIB));
}

#[test]
fn only_whole_steps_are_unmapped() {
    let mut model = growing(100 * MIB);
    let [_low, middle, _high] = [5 * MIB, 50 * MIB, 5 * MIB].map(|bytes| model.allocate(bytes, 0).unwrap());
    model.free(middle);
    // 60 MiB are mapped. Of the hole from 5 to 55 MiB the step from 20 to 40 MiB is whole.
    let high = model.allocate(51 * MIB, 0).unwrap();
    assert_eq!(model.reserved_bytes(), 100 * MIB);
    assert_eq!(model.offset_bytes(high), 60 * MIB);
    // Both ends of the hole are left; the lower one could grow into the middle again.
    let upper = model.allocate(15 * MIB, 0).unwrap();
    assert_eq!(model.offset_bytes(upper), 40 * MIB);
    let lower = model.allocate(15 * MIB, 0).unwrap();
    assert_eq!(model.offset_bytes(lower), 5 * MIB);
    assert_eq!(model.allocate(10 * MIB, 0), None, "all that is left is 9 MiB");
}

#[test]
fn a_segment_that_has_nothing_left_is_given_back() {
    let mut model = growing(40 * MIB);
    let one = model.allocate(40 * MIB, 1).unwrap();
    model.free(one);
    let two = model.allocate(40 * MIB, 2).unwrap();
    assert_eq!(model.reserved_bytes(), 40 * MIB, "the other stream's memory was unmapped");
    model.free(two);
    let again = model.allocate(40 * MIB, 1).unwrap();
    // Each segment has addresses of its own, for an eighth more than the device has, in whole steps.
    assert_eq!(model.offset_bytes(again), 2 * 60 * MIB);
}

#[test]
fn sizes_beyond_everything_do_not_grow() {
    for capacity in [0, MIB, u64::MAX] {
        let mut model = growing(capacity);
        assert_eq!(model.allocate(u64::MAX, 0), None);
        assert_eq!(model.allocate(u64::MAX - 1024 * MIB, 0), None);
        assert_eq!(model.allocate(1, 0).is_some(), capacity >= 2 * MIB);
    }
}

/// Blocks tile their segments, and what is reserved is what is mapped.
fn check(model: &CachingAllocator, live: &[BlockId]) {
    let live: u64 = live.iter().map(|&block| model.size_bytes(block)).sum();
    let cached: u64 = model.free_bytes() - (model.capacity - model.reserved);
    assert_eq!(live + cached, model.reserved);
    for (&(stream, pool), cached) in &model.blocks.cached {
        for &(size, offset, index) in cached {
            let block = model.blocks.get(index);
            assert_eq!((block.size, block.offset, block.stream, block.pool), (size, offset, stream, pool));
            assert_eq!(block.state, State::Cached);
            let next = block.next.map(|next| model.blocks.get(next));
            assert!(next.is_none_or(|next| next.offset == offset + size && next.state != State::Cached));
        }
    }
}

proptest::proptest! {
    #[test]
    fn whatever_is_asked_for_the_books_balance(
        steps in proptest::collection::vec((1..60 * MIB, 0..3_u64, 0..100_usize), 1..200),
        expandable: bool,
    ) {
        let segments = if expandable { Segments::Expandable } else { Segments::Fixed };
        let mut model = CachingAllocator::with_segments(200 * MIB, segments);
        let mut live = Vec::new();
        for (bytes, stream, place) in steps {
            if place < live.len() {
                model.free(live.swap_remove(place));
            } else if let Some(block) = model.allocate(bytes >> (place % 12), stream) {
                live.push(block);
            }
            check(&model, &live);
        }
    }
}

#[test]
fn addresses_are_not_given_out_twice() {
    let mut model = CachingAllocator::new(1 << 63);
    let first = model.allocate(1 << 63, 0).unwrap();
    model.free(first);
    // The cache has none for another stream; the segment goes back, its addresses do not.
    assert_eq!(model.allocate(1 << 63, 1), None, "the second would end at 2^64");
    assert_eq!((model.reserved_bytes(), model.free_bytes()), (0, 1 << 63));
    assert!(model.allocate(1 << 62, 1).is_some());
}
