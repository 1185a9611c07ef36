//! Segments that grow in place, which PyTorch calls expandable: addresses for more than the device has, and memory
//! mapped to them as it is needed, in steps of 2 MiB (small blocks) or 20 MiB (large ones).
//!
//! A request that no cached block serves takes the lowest unmapped addresses that have room for it, together with the
//! free block before them. When the device has nothing left, the whole steps within cached blocks are unmapped.

use super::blocks::{Block, Pool, State};
use super::{CachingAllocator, whole_steps};

/// More addresses than a program has.
const MOST_ADDRESSES: u64 = 1 << 48;

impl CachingAllocator {
    /// The cached block to take for a size: the smallest that fits, by what it could grow to as long as the next larger
    /// ones could grow to less.
    pub(super) fn best_growing(&self, size: u64, pool: Pool, stream: u64) -> Option<u32> {
        let fitting =
            self.blocks.cached.get(&(stream, pool))?.range((size, 0, 0)..).map(|&(_, _, index)| index);
        let mut best: Option<(u32, u64)> = None;
        for index in fitting {
            let could_be = self.could_be_bytes(index);
            if best.is_some_and(|(_, best)| could_be >= best) {
                break;
            }
            best = Some((index, could_be));
        }
        best.map(|(index, _)| index)
    }

    /// A block's size with the addresses behind it.
    fn could_be_bytes(&self, index: u32) -> u64 {
        let block = self.blocks.get(index);
        block.size + self.unmapped_after(block)
    }

    /// The unmapped addresses right behind a block.
    pub(super) fn unmapped_after(&self, block: &Block) -> u64 {
        let next = block.next.map(|next| self.blocks.get(next));
        next.filter(|next| next.state == State::Unmapped).map_or(0, |next| next.size)
    }

    /// Maps memory until a block of this size is there; it belongs to no set. What was mapped stays mapped when the
    /// device has no more.
    pub(super) fn grow(&mut self, size: u64, pool: Pool, stream: u64) -> Option<u32> {
        let mut candidate = self.room(size, pool, stream)?;
        if self.blocks.get(candidate).state == State::Unmapped {
            candidate = self.map(candidate, size)?;
        }
        while self.blocks.get(candidate).size < size {
            let block = self.blocks.get(candidate);
            let missing = size - block.size;
            candidate = self.map(block.next?, missing)?;
        }
        self.blocks.take(candidate);
        Some(candidate)
    }

    /// The first of the neighbours, free or unmapped, that have room for a size: the lowest there are, or those of a
    /// new segment.
    fn room(&mut self, size: u64, pool: Pool, stream: u64) -> Option<u32> {
        let lowest = self.blocks.unmapped.get(&(stream, pool)).into_iter().flatten();
        let found =
            lowest.map(|&(_, index)| self.with_free_before(index)).find(|&index| self.has_room(index, size));
        found.or_else(|| self.new_growing_segment(size, pool, stream))
    }

    fn with_free_before(&self, index: u32) -> u32 {
        let previous = self.blocks.get(index).previous;
        previous.filter(|&previous| self.blocks.get(previous).state != State::Live).unwrap_or(index)
    }

    fn has_room(&self, from: u32, size: u64) -> bool {
        let mut found = 0;
        let mut next = Some(from);
        while let Some(block) =
            next.map(|index| self.blocks.get(index)).filter(|block| block.state != State::Live)
        {
            found += block.size;
            if found >= size {
                return true;
            }
            next = block.next;
        }
        false
    }

    /// Addresses for an eighth more than the device has, so that steps can move from the front to the end.
    fn new_growing_segment(&mut self, size: u64, pool: Pool, stream: u64) -> Option<u32> {
        let addresses = self.capacity.saturating_add(self.capacity / 8).min(MOST_ADDRESSES);
        let bytes = addresses.next_multiple_of(pool.segment_bytes());
        if bytes < size {
            return None;
        }
        let offset = self.take_addresses(bytes)?;
        let (previous, next, growing_from) = (None, None, Some(offset));
        let block =
            Block { offset, size: bytes, previous, next, pool, stream, state: State::Live, growing_from };
        let index = self.blocks.add(block);
        Some(self.blocks.put(index, State::Unmapped))
    }

    /// Maps the steps that a size at the beginning of an unmapped block needs, all or none. They are cached, joined
    /// with the free memory around them.
    fn map(&mut self, index: u32, size: u64) -> Option<u32> {
        let block = self.blocks.get(index);
        let bytes = size.checked_next_multiple_of(block.pool.segment_bytes())?.min(block.size);
        if bytes > self.capacity - self.reserved {
            return None;
        }
        self.reserved += bytes;
        let is_cut = bytes < block.size;
        self.blocks.take(index);
        if is_cut {
            self.blocks.split(index, bytes, State::Unmapped);
        }
        Some(self.blocks.put(index, State::Cached))
    }

    /// Gives the whole steps within cached blocks back to the device, and the addresses of segments that have none
    /// left.
    pub(super) fn unmap_cached(&mut self) {
        let cached = self.blocks.cached.values().flatten().map(|&(_, _, index)| index);
        let growing = cached.filter(|&index| self.blocks.get(index).growing_from.is_some());
        for index in growing.collect::<Vec<u32>>() {
            self.unmap(index);
        }
    }

    fn unmap(&mut self, index: u32) {
        let &Block { offset, size, pool, growing_from, .. } = self.blocks.get(index);
        // All from the beginning of the segment: the block, and the whole steps within it.
        let from = offset.wrapping_sub(growing_from.unwrap_or(0));
        let (start, end) = (from.next_multiple_of(pool.segment_bytes()), whole_steps(from + size, pool));
        if start >= end {
            return;
        }
        self.reserved -= end - start;
        self.blocks.take(index);
        if from + size > end {
            self.blocks.split(index, end - from, State::Cached);
        }
        let unmapped = if start > from {
            let unmapped = self.blocks.split(index, start - from, State::Unmapped);
            self.blocks.put(index, State::Cached);
            unmapped
        } else {
            self.blocks.put(index, State::Unmapped)
        };
        if self.blocks.get(unmapped).is_whole_segment() {
            self.blocks.take(unmapped);
            self.blocks.forget(unmapped);
        }
    }
}
