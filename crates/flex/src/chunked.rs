//! A table that grows without moving what is in it, indexed like the nodes of the arena: for what is known of a block
//! without the allocator mutex.
//!
//! Entries live in chunks that are made when their first entry is asked for. No lock; whoever grows the table at the
//! same time as another thread waits for that thread's allocation.

use std::sync::OnceLock;

/// The first so many chunks hold `FIRST_CHUNK` entries each; then the size doubles after every so many.
const CHUNKS_OF_A_SIZE: u32 = 8;
const FIRST_CHUNK: u32 = if cfg!(all(test, loom)) { 4 } else { 256 };
const CHUNKS: usize = (CHUNKS_OF_A_SIZE * (33 - 8 - CHUNKS_OF_A_SIZE.ilog2())) as usize;

/// The table; entries start as their default.
pub(crate) struct ChunkedTable<T> {
    chunks: [OnceLock<Box<[T]>>; CHUNKS],
}

impl<T: Default> ChunkedTable<T> {
    pub(crate) fn new() -> Self {
        ChunkedTable { chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    /// An entry; `None` if its chunk has not been made.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let (chunk, offset) = locate(index);
        self.chunks.get(chunk)?.get()?.get(offset)
    }

    /// An entry, with its chunk if that is missing.
    #[inline]
    pub(crate) fn get_or_grow(&self, index: u32) -> &T {
        let (chunk, offset) = locate(index);
        let entries =
            self.chunks[chunk].get_or_init(|| (0..chunk_size(chunk)).map(|_| T::default()).collect());
        &entries[offset]
    }
}

/// Which chunk an entry is in, and where.
#[inline]
fn locate(index: u32) -> (usize, usize) {
    // The leading bit and the three after it.
    let position = u64::from(index) + u64::from(FIRST_CHUNK * CHUNKS_OF_A_SIZE);
    let shift = position.ilog2() - CHUNKS_OF_A_SIZE.ilog2();
    let step = (shift - FIRST_CHUNK.ilog2()) * CHUNKS_OF_A_SIZE;
    let chunk = u64::from(step) + (position >> shift) - u64::from(CHUNKS_OF_A_SIZE);
    (chunk as usize, (position & ((1 << shift) - 1)) as usize)
}

fn chunk_size(chunk: usize) -> u32 {
    FIRST_CHUNK << (chunk as u32 / CHUNKS_OF_A_SIZE)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn chunks_tile_the_index_space() {
        let mut expected = (0, 0);
        for index in 0..200_000 {
            assert_eq!(locate(index), expected, "index {index}");
            expected.1 += 1;
            if expected.1 == chunk_size(expected.0) as usize {
                expected = (expected.0 + 1, 0);
            }
        }
    }

    #[test]
    fn entries_appear_with_their_chunk_and_stay() {
        let table: ChunkedTable<std::cell::Cell<u32>> = ChunkedTable::new();
        assert!(table.get(1000).is_none());
        table.get_or_grow(1000).set(7);
        assert_eq!(table.get(1000).map(std::cell::Cell::get), Some(7));
        assert_eq!(table.get(1001).map(std::cell::Cell::get), Some(0), "of the same chunk");
        assert!(table.get(0).is_none());
        assert_eq!(table.get_or_grow(100_000).get(), 0);
    }
}
