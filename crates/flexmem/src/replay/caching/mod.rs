//! A model of PyTorch's caching allocator for CUDA.
//!
//! Rules, from `c10/cuda/CUDACachingAllocator.cpp` (PyTorch 2.x, default settings): sizes are rounded to 512 bytes;
//! up to 1 MiB they are served from segments of 2 MiB, below 10 MiB from segments of 20 MiB, above from segments of
//! their own size rounded to 2 MiB; the smallest cached block that fits is taken, the lowest of those; it is split if
//! 512 bytes (small) or more than 1 MiB (large) would be left; free neighbours in a segment coalesce; when the device
//! has no room for a segment, all segments that are wholly free are given back, once, and it is tried again. With
//! `expandable_segments` segments [grow](growing) instead, and blocks are split whenever 512 bytes would be left.
//!
//! A block serves the stream that its segment was made for, and no other. Segments do not coalesce:
//! each gets addresses that are never used again. Capacity is what all segments together may reserve, which is kind to
//! the model: the device's own fragmentation is left out. Sizes are in bytes.

mod blocks;
mod growing;
#[cfg(test)]
mod tests;

use self::blocks::{Block, Blocks, LARGE_SEGMENT, MIB, Pool, ROUND, SMALL_SEGMENT, State};

const OWN_SEGMENT_FROM: u64 = 10 * MIB;
const OWN_SEGMENT_ROUND: u64 = 2 * MIB;

/// The segment for a size; `None` if there is none so large.
fn segment_size(size: u64) -> Option<u64> {
    match Pool::of(size) {
        Pool::Small => Some(SMALL_SEGMENT),
        Pool::Large if size < OWN_SEGMENT_FROM => Some(LARGE_SEGMENT),
        Pool::Large => size.checked_next_multiple_of(OWN_SEGMENT_ROUND),
    }
}

/// Names a live block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockId(u32);

/// What segments the allocator takes from the device: the setting `expandable_segments`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Segments {
    /// Of a size that stays: `False`, the default.
    #[default]
    Fixed,
    /// Those that grow in place: `True`.
    Expandable,
}

/// See the module's text.
#[derive(Debug)]
pub struct CachingAllocator {
    segments: Segments,
    capacity: u64,
    reserved: u64,
    next_address: u64,
    blocks: Blocks,
}

impl CachingAllocator {
    /// An allocator of a device with so many bytes, with PyTorch's default settings.
    pub fn new(capacity_bytes: u64) -> Self {
        CachingAllocator::with_segments(capacity_bytes, Segments::Fixed)
    }

    /// An allocator of a device with so many bytes.
    pub fn with_segments(capacity_bytes: u64, segments: Segments) -> Self {
        let blocks = Blocks::default();
        CachingAllocator { segments, capacity: capacity_bytes, reserved: 0, next_address: 0, blocks }
    }

    /// Allocates for a stream; `None` for want of room.
    pub fn allocate(&mut self, bytes: u64, stream: u64) -> Option<BlockId> {
        let size = bytes.max(1).checked_next_multiple_of(ROUND)?;
        let pool = Pool::of(size);
        let index = match self.best_cached(size, pool, stream) {
            Some(index) => {
                self.blocks.take(index);
                index
            }
            None => self.take_from_device(size, pool, stream).or_else(|| {
                self.release_cached();
                self.take_from_device(size, pool, stream)
            })?,
        };
        let rest = self.blocks.get(index).size - size;
        let splits = match self.segments {
            Segments::Fixed => pool.splits(rest),
            Segments::Expandable => rest >= ROUND,
        };
        if splits {
            self.blocks.split(index, size, State::Cached);
        }
        Some(BlockId(index))
    }

    /// Frees a live block.
    ///
    /// # Panics
    ///
    /// If it was never allocated.
    pub fn free(&mut self, block: BlockId) {
        self.blocks.put(block.0, State::Cached);
    }

    /// Where a live block starts. Segments lie one behind the other, in the order in which they were made.
    ///
    /// # Panics
    ///
    /// If it was never allocated.
    pub fn offset_bytes(&self, block: BlockId) -> u64 {
        self.blocks.get(block.0).offset
    }

    /// What a live block occupies.
    ///
    /// # Panics
    ///
    /// If it was never allocated.
    pub fn size_bytes(&self, block: BlockId) -> u64 {
        self.blocks.get(block.0).size
    }

    /// What all segments have.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved
    }

    /// The largest free block of all streams, or what the device has left, whichever is more. One in a segment that
    /// grows counts with what it can grow by.
    pub fn largest_free_bytes(&self) -> u64 {
        let left = self.capacity - self.reserved;
        let largest = |index: u32| {
            let block = self.blocks.get(index);
            block.size + self.unmapped_after(block).min(whole_steps(left, block.pool))
        };
        let cached = self.blocks.cached.values().flatten().map(|&(_, _, index)| largest(index)).max();
        let fresh = match self.segments {
            Segments::Fixed => left,
            Segments::Expandable => whole_steps(left, Pool::Large),
        };
        cached.unwrap_or(0).max(fresh)
    }

    /// What is cached, and what the device has left.
    pub fn free_bytes(&self) -> u64 {
        let cached: u64 = self.blocks.cached.values().flatten().map(|&(size, _, _)| size).sum();
        cached + (self.capacity - self.reserved)
    }

    /// Puts the next segment at this address, as a device does that is followed.
    pub fn place_next_segment(&mut self, address: u64) {
        self.next_address = address;
    }

    fn best_cached(&self, size: u64, pool: Pool, stream: u64) -> Option<u32> {
        match self.segments {
            Segments::Fixed => {
                let cached = self.blocks.cached.get(&(stream, pool))?;
                cached.range((size, 0, 0)..).next().map(|&(_, _, index)| index)
            }
            Segments::Expandable => self.best_growing(size, pool, stream),
        }
    }

    fn take_from_device(&mut self, size: u64, pool: Pool, stream: u64) -> Option<u32> {
        match self.segments {
            Segments::Fixed => self.new_segment(segment_size(size)?, pool, stream),
            Segments::Expandable => self.grow(size, pool, stream),
        }
    }

    /// Addresses for a segment; `None` when all 64 bits' worth were given out, since none is used again.
    fn take_addresses(&mut self, bytes: u64) -> Option<u64> {
        let offset = self.next_address;
        self.next_address = offset.checked_add(bytes)?;
        Some(offset)
    }

    fn new_segment(&mut self, size: u64, pool: Pool, stream: u64) -> Option<u32> {
        if size > self.capacity - self.reserved {
            return None;
        }
        let offset = self.take_addresses(size)?;
        self.reserved += size;
        let (previous, next, growing_from) = (None, None, None);
        Some(self.blocks.add(Block {
            offset,
            size,
            previous,
            next,
            pool,
            stream,
            state: State::Live,
            growing_from,
        }))
    }

    /// Gives back to the device what is wholly free.
    fn release_cached(&mut self) {
        match self.segments {
            Segments::Fixed => self.release_segments(),
            Segments::Expandable => self.unmap_cached(),
        }
    }

    fn release_segments(&mut self) {
        let cached = self.blocks.cached.values().flatten().map(|&(_, _, index)| index);
        let whole: Vec<u32> = cached.filter(|&index| self.blocks.get(index).is_whole_segment()).collect();
        for index in whole {
            self.reserved -= self.blocks.get(index).size;
            self.blocks.take(index);
            self.blocks.forget(index);
        }
    }
}

fn whole_steps(bytes: u64, pool: Pool) -> u64 {
    bytes / pool.segment_bytes() * pool.segment_bytes()
}
