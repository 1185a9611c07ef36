//! A model of PyTorch's caching allocator for CUDA, without expandable segments.
//!
//! Rules, from `c10/cuda/CUDACachingAllocator.cpp` (PyTorch 2.x, default settings): sizes are rounded to 512 bytes;
//! up to 1 MiB they are served from segments of 2 MiB, below 10 MiB from segments of 20 MiB, above from segments of
//! their own size rounded to 2 MiB; the smallest cached block that fits is taken, the lowest of those; it is split if
//! 512 bytes (small) or more than 1 MiB (large) would be left; free neighbours in a segment coalesce; when the device
//! has no room for a segment, all segments that are wholly free are given back, once, and it is tried again.
//!
//! A block serves the stream that its segment was made for, and no other. Segments do not coalesce:
//! each gets addresses that are never used again. Capacity is what all segments together may reserve, which is kind to
//! the model: the device's own fragmentation is left out. Sizes are in bytes.

use std::collections::{BTreeMap, BTreeSet};

const MIB: u64 = 1 << 20;
const ROUND: u64 = 512;
const SMALL_LARGEST: u64 = MIB;
const SMALL_SEGMENT: u64 = 2 * MIB;
const LARGE_SEGMENT: u64 = 20 * MIB;
const OWN_SEGMENT_FROM: u64 = 10 * MIB;
const OWN_SEGMENT_ROUND: u64 = 2 * MIB;

/// The pools, by size class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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

/// The segment for a size; `None` if there is none so large.
fn segment_size(size: u64) -> Option<u64> {
    if size <= SMALL_LARGEST {
        Some(SMALL_SEGMENT)
    } else if size < OWN_SEGMENT_FROM {
        Some(LARGE_SEGMENT)
    } else {
        size.checked_next_multiple_of(OWN_SEGMENT_ROUND)
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
    stream: u64,
    free: bool,
}

impl Block {
    fn is_whole_segment(&self) -> bool {
        self.previous.is_none() && self.next.is_none()
    }
}

/// Free blocks by size, then offset.
type Cached = BTreeSet<(u64, u64, u32)>;

/// Names a live block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockId(u32);

/// See the module's text.
#[derive(Debug)]
pub struct CachingAllocator {
    capacity: u64,
    reserved: u64,
    next_address: u64,
    blocks: Vec<Block>,
    spare: Vec<u32>,
    /// By stream and size class.
    cached: BTreeMap<(u64, Pool), Cached>,
}

impl CachingAllocator {
    /// An allocator of a device with so many bytes.
    pub fn new(capacity_bytes: u64) -> Self {
        CachingAllocator {
            capacity: capacity_bytes,
            reserved: 0,
            next_address: 0,
            blocks: Vec::new(),
            spare: Vec::new(),
            cached: BTreeMap::new(),
        }
    }

    /// Allocates for a stream; `None` for want of room.
    pub fn allocate(&mut self, bytes: u64, stream: u64) -> Option<BlockId> {
        let size = bytes.max(1).checked_next_multiple_of(ROUND)?;
        let pool = Pool::of(size);
        let cached = self.cached.get(&(stream, pool));
        let found = cached.and_then(|cached| cached.range((size, 0, 0)..).next());
        let index = match found {
            Some(&(_, _, index)) => {
                self.uncache(index);
                index
            }
            None => self.new_segment(segment_size(size)?, pool, stream)?,
        };
        if pool.splits(self.block(index).size - size) {
            self.split(index, size);
        }
        Some(BlockId(index))
    }

    /// Frees a live block.
    ///
    /// # Panics
    ///
    /// If it was never allocated.
    pub fn free(&mut self, block: BlockId) {
        let mut index = block.0;
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

    /// Where a live block starts. Segments lie one behind the other, in the order in which they were made.
    ///
    /// # Panics
    ///
    /// If it was never allocated.
    pub fn offset_bytes(&self, block: BlockId) -> u64 {
        self.blocks[block.0 as usize].offset
    }

    /// What a live block occupies.
    ///
    /// # Panics
    ///
    /// If it was never allocated.
    pub fn size_bytes(&self, block: BlockId) -> u64 {
        self.blocks[block.0 as usize].size
    }

    /// What all segments have.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved
    }

    /// The largest free block of all streams, or what the device has left, whichever is more.
    pub fn largest_free_bytes(&self) -> u64 {
        let largest = self.cached.values().filter_map(|blocks| blocks.last()).map(|&(size, _, _)| size).max();
        largest.unwrap_or(0).max(self.capacity - self.reserved)
    }

    /// What is cached, and what the device has left.
    pub fn free_bytes(&self) -> u64 {
        let cached: u64 = self.cached.values().flatten().map(|&(size, _, _)| size).sum();
        cached + (self.capacity - self.reserved)
    }

    /// Puts the next segment at this address, as a device does that is followed.
    pub fn place_next_segment(&mut self, address: u64) {
        self.next_address = address;
    }

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
        let (key, class) = ((block.size, block.offset, index), (block.stream, block.pool));
        self.cached.entry(class).or_default().insert(key);
    }

    fn uncache(&mut self, index: u32) {
        let block = self.block(index);
        block.free = false;
        let (key, class) = ((block.size, block.offset, index), (block.stream, block.pool));
        self.cached.entry(class).or_default().remove(&key);
    }

    fn new_segment(&mut self, size: u64, pool: Pool, stream: u64) -> Option<u32> {
        if size > self.capacity - self.reserved {
            self.release_cached_segments();
        }
        if size > self.capacity - self.reserved {
            return None;
        }
        self.reserved += size;
        let offset = self.next_address;
        self.next_address = self.next_address.wrapping_add(size);
        Some(self.add(Block { offset, size, previous: None, next: None, pool, stream, free: false }))
    }

    fn release_cached_segments(&mut self) {
        for cached in self.cached.values_mut() {
            let all = std::mem::take(cached);
            let (whole, parts): (Cached, _) =
                all.into_iter().partition(|&(_, _, index)| self.blocks[index as usize].is_whole_segment());
            *cached = parts;
            self.reserved -= whole.iter().map(|&(size, _, _)| size).sum::<u64>();
            self.spare.extend(whole.into_iter().map(|(_, _, index)| index));
        }
    }

    /// Cuts a block down to `size` and caches the rest.
    fn split(&mut self, index: u32, size: u64) {
        let &mut Block { offset, size: whole, next, pool, stream, .. } = self.block(index);
        let upper = Block {
            offset: offset + size,
            size: whole - size,
            previous: Some(index),
            next,
            pool,
            stream,
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

#[cfg(test)]
mod tests {
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
        assert_eq!(model.block(small.0).size, ROUND);
        let own = model.allocate(11 * MIB, 0).unwrap();
        assert_eq!(model.block(own.0).size, 12 * MIB, "1 MiB is not split off");
        let shared = model.allocate(2 * MIB, 0).unwrap();
        assert_eq!(model.block(shared.0).size, 2 * MIB);
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
}
