//! A model of PyTorch's caching allocator for CUDA, without expandable segments.
//!
//! Rules, from `c10/cuda/CUDACachingAllocator.cpp` (PyTorch 2.x, default settings): sizes are rounded to 512 bytes;
//! up to 1 MiB they are served from segments of 2 MiB, below 10 MiB from segments of 20 MiB, above from segments of
//! their own size rounded to 2 MiB; the smallest cached block that fits is taken, the lowest of those; it is split if
//! 512 bytes (small) or more than 1 MiB (large) would be left; free neighbours in a segment coalesce; when the device
//! has no room for a segment, all segments that are wholly free are given back, once, and it is tried again.
//!
//! Segments do not coalesce: each gets addresses that are never used again. Capacity is what all segments together may
//! reserve, which is kind to the model: the device's own fragmentation is left out.

use std::collections::BTreeSet;

use super::{Peer, UNIT_BYTES};

const fn units(bytes: u64) -> u64 {
    bytes / UNIT_BYTES
}

const MIB: u64 = 1 << 20;
const ROUND: u64 = units(512);
const SMALL_LARGEST: u64 = units(MIB);
const SMALL_SEGMENT: u64 = units(2 * MIB);
const LARGE_SEGMENT: u64 = units(20 * MIB);
const OWN_SEGMENT_FROM: u64 = units(10 * MIB);
const OWN_SEGMENT_ROUND: u64 = units(2 * MIB);

/// The pools, by size class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pool {
    Small,
    Large,
}

impl Pool {
    fn of(size: u64) -> Pool {
        if size <= SMALL_LARGEST { Pool::Small } else { Pool::Large }
    }

    /// Whether a block is split when this much would be left.
    fn splits(self, rest: u64) -> bool {
        match self {
            Pool::Small => rest >= ROUND,
            Pool::Large => rest > SMALL_LARGEST,
        }
    }
}

fn segment_size(size: u64) -> u64 {
    if size <= SMALL_LARGEST {
        SMALL_SEGMENT
    } else if size < OWN_SEGMENT_FROM {
        LARGE_SEGMENT
    } else {
        size.next_multiple_of(OWN_SEGMENT_ROUND)
    }
}

#[derive(Debug)]
struct Block {
    offset: u64,
    size: u64,
    /// Neighbours within the segment.
    previous: Option<u32>,
    next: Option<u32>,
    pool: Pool,
    free: bool,
}

impl Block {
    fn is_whole_segment(&self) -> bool {
        self.previous.is_none() && self.next.is_none()
    }
}

/// See the module's text.
pub(crate) struct PyTorch {
    capacity: u64,
    reserved: u64,
    next_address: u64,
    blocks: Vec<Block>,
    spare: Vec<u32>,
    /// Free blocks by size, then offset.
    cached: [BTreeSet<(u64, u64, u32)>; 2],
}

impl PyTorch {
    fn block(&mut self, index: u32) -> &mut Block {
        &mut self.blocks[index as usize]
    }

    fn add(&mut self, block: Block) -> u32 {
        if let Some(index) = self.spare.pop() {
            *self.block(index) = block;
            return index;
        }
        self.blocks.push(block);
        (self.blocks.len() - 1) as u32
    }

    fn cache(&mut self, index: u32) {
        let block = self.block(index);
        block.free = true;
        let (key, pool) = ((block.size, block.offset, index), block.pool);
        self.cached[pool as usize].insert(key);
    }

    fn uncache(&mut self, index: u32) {
        let block = self.block(index);
        block.free = false;
        let (key, pool) = ((block.size, block.offset, index), block.pool);
        self.cached[pool as usize].remove(&key);
    }

    fn new_segment(&mut self, size: u64, pool: Pool) -> Option<u32> {
        if self.reserved + size > self.capacity {
            self.release_cached_segments();
        }
        if self.reserved + size > self.capacity {
            return None;
        }
        self.reserved += size;
        let offset = self.next_address;
        self.next_address += size;
        Some(self.add(Block { offset, size, previous: None, next: None, pool, free: false }))
    }

    fn release_cached_segments(&mut self) {
        for pool in 0..self.cached.len() {
            let all = std::mem::take(&mut self.cached[pool]);
            let (whole, parts): (BTreeSet<_>, _) =
                all.into_iter().partition(|&(_, _, index)| self.blocks[index as usize].is_whole_segment());
            self.cached[pool] = parts;
            self.reserved -= whole.iter().map(|&(size, _, _)| size).sum::<u64>();
            self.spare.extend(whole.into_iter().map(|(_, _, index)| index));
        }
    }

    /// Cuts a block down to `size` and caches the rest.
    fn split(&mut self, index: u32, size: u64) {
        let &mut Block { offset, size: whole, next, pool, .. } = self.block(index);
        let upper = Block {
            offset: offset + size,
            size: whole - size,
            previous: Some(index),
            next,
            pool,
            free: true,
        };
        let upper = self.add(upper);
        if let Some(next) = next {
            self.block(next).previous = Some(upper);
        }
        let lower = self.block(index);
        (lower.size, lower.next) = (size, Some(upper));
        self.cache(upper);
    }

    /// Makes two neighbours one, the lower.
    fn join(&mut self, lower: u32, upper: u32) {
        let &mut Block { size, next, .. } = self.block(upper);
        let block = self.block(lower);
        block.size += size;
        block.next = next;
        if let Some(next) = next {
            self.block(next).previous = Some(lower);
        }
        self.spare.push(upper);
    }
}

impl Peer for PyTorch {
    const NAME: &'static str = "PyTorch model";
    type Handle = u32;

    fn new(capacity_units: u64) -> Self {
        PyTorch {
            capacity: capacity_units,
            reserved: 0,
            next_address: 0,
            blocks: Vec::new(),
            spare: Vec::new(),
            cached: Default::default(),
        }
    }

    fn allocate(&mut self, size_units: u32) -> Option<u32> {
        let size = u64::from(size_units).next_multiple_of(ROUND);
        let pool = Pool::of(size);
        let found = self.cached[pool as usize].range((size, 0, 0)..).next().map(|&(_, _, index)| index);
        let index = match found {
            Some(index) => {
                self.uncache(index);
                index
            }
            None => self.new_segment(segment_size(size), pool)?,
        };
        if pool.splits(self.block(index).size - size) {
            self.split(index, size);
        }
        Some(index)
    }

    fn free(&mut self, handle: u32) {
        let mut index = handle;
        if let Some(next) = self.block(index).next
            && self.block(next).free
        {
            self.uncache(next);
            self.join(index, next);
        }
        if let Some(previous) = self.block(index).previous
            && self.block(previous).free
        {
            self.uncache(previous);
            self.join(previous, index);
            index = previous;
        }
        self.cache(index);
    }

    fn offset_units(&self, handle: &u32) -> u64 {
        self.blocks[*handle as usize].offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> PyTorch {
        PyTorch::new(units(100 * MIB))
    }

    fn allocate(model: &mut PyTorch, bytes: u64) -> Option<u32> {
        model.allocate(bytes.div_ceil(UNIT_BYTES) as u32)
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
            allocate(&mut model, bytes).unwrap();
            assert_eq!(model.reserved, units(segment), "{bytes}");
        }
    }

    #[test]
    fn small_rests_are_split_off_and_large_ones_only_above_a_mebibyte() {
        let mut model = model();
        let small = allocate(&mut model, 1).unwrap();
        assert_eq!(model.block(small).size, ROUND);
        let own = allocate(&mut model, 11 * MIB).unwrap();
        assert_eq!(model.block(own).size, units(12 * MIB), "1 MiB is not split off");
        let shared = allocate(&mut model, 2 * MIB).unwrap();
        assert_eq!(model.block(shared).size, units(2 * MIB));
    }

    #[test]
    fn the_tightest_cached_block_is_taken_before_a_new_segment() {
        let mut model = model();
        let [large, tight] = [30 * MIB, 14 * MIB].map(|bytes| allocate(&mut model, bytes).unwrap());
        model.free(large);
        model.free(tight);
        assert_eq!(allocate(&mut model, 13 * MIB), Some(tight));
        assert_eq!(model.reserved, units(44 * MIB));
    }

    #[test]
    fn whole_segments_are_given_back_when_the_device_is_full() {
        let mut model = model();
        let kept = allocate(&mut model, MIB).unwrap();
        let first = allocate(&mut model, 60 * MIB).unwrap();
        assert!(allocate(&mut model, 60 * MIB + 1).is_none());
        model.free(first);
        assert!(allocate(&mut model, 90 * MIB).is_some());
        assert_eq!(model.reserved, units(92 * MIB), "the small segment is in use");
        model.free(kept);
        assert!(allocate(&mut model, 10 * MIB).is_some(), "by giving back the small segment");
    }

    /// The model takes the same segments at the same moments and hands out the same addresses as PyTorch did, given the
    /// addresses that the device gave the segments.
    #[test]
    fn a_real_trace_is_followed_block_by_block() {
        let mut model = PyTorch::new(units(1 << 40));
        let (mut segments, mut reserved, mut live) = (0, 0, Vec::new());
        let number = |field: &str| field.parse::<u64>().unwrap();
        let trace = include_str!("../../../data/snapshots/complete_trace.device-0.txt");
        for line in trace.lines().filter(|line| !line.starts_with('#')) {
            match line.split(' ').collect::<Vec<_>>().as_slice() {
                ["segment", bytes, "at", address] => {
                    model.next_address = units(number(address));
                    segments += 1;
                    reserved += units(number(bytes));
                }
                ["allocate", id, bytes, "at", address] => {
                    let handle = allocate(&mut model, number(bytes)).unwrap();
                    assert_eq!(model.reserved, reserved, "{line}");
                    assert_eq!(model.offset_units(&handle), units(number(address)), "{line}");
                    assert_eq!(number(id), live.len() as u64);
                    live.push(handle);
                }
                ["free", id] => model.free(live[number(id) as usize]),
                _ => panic!("{line}"),
            }
        }
        assert_eq!((segments, live.len()), (9, 36), "the whole trace");
    }
}
