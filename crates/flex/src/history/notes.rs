//! Notes on live blocks: where and when each was allocated, for as long as it lives, also after the ring has forgotten.
//!
//! One note for each index of a block, found without the allocator mutex. It names the generation it is about, so a
//! note of an earlier block of the same index is not taken for the newer one's.
//!
//! Only the thread that has just got a block writes its note; anybody reads, and takes only what is whole. Memory: 16
//! bytes for each index that was ever allocated while history was on.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::arena::BlockHandle;
use crate::chunked::ChunkedTable;

/// What is known of a live block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BlockNote {
    /// Where it was allocated; 0 if that is not known.
    pub(crate) site: u32,
    /// When, in nanoseconds since 1970; 0 if that is not known.
    pub(crate) time_ns: u64,
}

#[derive(Default)]
struct Note {
    /// Generation and site; 0 while it is being written, and before.
    block: AtomicU64,
    time_ns: AtomicU64,
}

/// The notes of one allocator.
pub(super) struct Notes(ChunkedTable<Note>);

impl Notes {
    pub(super) fn new() -> Self {
        Notes(ChunkedTable::new())
    }

    /// Notes something about a block that the calling thread has just got.
    pub(super) fn write(&self, handle: BlockHandle, note: BlockNote) {
        let entry = self.0.get_or_grow(handle.index);
        entry.block.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        entry.time_ns.store(note.time_ns, Ordering::Relaxed);
        entry.block.store(u64::from(handle.generation) << 32 | u64::from(note.site), Ordering::Release);
    }

    /// The note on a block; nothing is known if it was allocated while history was off.
    pub(super) fn read(&self, handle: BlockHandle) -> BlockNote {
        let Some(entry) = self.0.get(handle.index) else { return BlockNote::default() };
        let block = entry.block.load(Ordering::Acquire);
        let time_ns = entry.time_ns.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_whole = entry.block.load(Ordering::Relaxed) == block;
        if !is_whole || block >> 32 != u64::from(handle.generation) {
            return BlockNote::default();
        }
        BlockNote { site: block as u32, time_ns }
    }
}
