//! Frees that found the mutex taken: an intrusive, lock-free list of block handles.
//!
//! Every block has a link here, indexed like its node in the arena, so that pushing needs no memory. Links live
//! in chunks that never move; chunks are added under the allocator mutex when a block with a new index is
//! handed out, before anybody can free it.
//!
//! Invariants:
//! - a block is freed once: by the thread that turns its link from live to 0 (holding the mutex) or to queued, so a
//!   stale handle is found out at once, whatever its index names meanwhile;
//! - `head` is pushed to by any thread and taken as a whole, so that there is no ABA;
//! - `backlog`, what a bounded drain took and did not finish, is changed only under the allocator mutex.

use std::sync::OnceLock;

use crate::arena::BlockHandle;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::newest;

/// At most this many blocks are drained in one hold of the mutex: a long drain is an unbounded critical section.
pub(crate) const DRAIN_LIMIT: usize = if cfg!(all(test, loom)) { 2 } else { 256 };

/// Generations have 24 bits.
const QUEUED: u64 = 1 << 31;

const FIRST_CHUNK: u32 = if cfg!(all(test, loom)) { 4 } else { 1024 };
const CHUNKS: usize = 22;

#[derive(Default)]
struct Link {
    /// 0: the index names no block that may be freed. A generation: that block is live. [`QUEUED`] and a generation
    /// in the low half, the next index + 1 in the high half: that block is on the list.
    word: AtomicU64,
    /// The block's size in units, written under the mutex when the block is handed out.
    size_units: AtomicU32,
}

/// The pending frees of one allocator.
pub(crate) struct PendingFrees {
    head: AtomicU32,
    backlog: AtomicU32,
    chunks: [OnceLock<Box<[Link]>>; CHUNKS],
}

impl PendingFrees {
    pub(crate) fn new() -> Self {
        PendingFrees {
            head: AtomicU32::new(0),
            backlog: AtomicU32::new(0),
            chunks: [const { OnceLock::new() }; CHUNKS],
        }
    }

    /// Prepares the link of a block that is being handed out. Called under the mutex.
    pub(crate) fn prepare(&self, handle: BlockHandle, size_units: u32) {
        let (chunk, offset) = locate(handle.index);
        let links =
            self.chunks[chunk].get_or_init(|| (0..FIRST_CHUNK << chunk).map(|_| Link::default()).collect());
        links[offset].size_units.store(size_units, Ordering::Relaxed);
        // Whoever frees the block got its handle from the thread that prepared it.
        links[offset].word.store(u64::from(handle.generation), Ordering::Relaxed);
    }

    /// Takes the right to free a live block, for a thread that holds the mutex. `false` if the block was freed or
    /// queued before, or never handed out.
    pub(crate) fn claim(&self, handle: BlockHandle) -> bool {
        let live = u64::from(handle.generation);
        let Some(link) = self.link(handle.index) else { return false };
        live != 0 && link.word.compare_exchange(live, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The size that was recorded when the block was handed out, in units; `None` for an index never handed out.
    pub(crate) fn size_units(&self, handle: BlockHandle) -> Option<u32> {
        Some(self.link(handle.index)?.size_units.load(Ordering::Relaxed))
    }

    /// Queues a live block. `false` if it was freed or queued before, or never handed out.
    pub(crate) fn push(&self, handle: BlockHandle) -> bool {
        let Some(link) = self.link(handle.index) else { return false };
        let mut head = self.head.load(Ordering::Relaxed);
        let live = u64::from(handle.generation);
        let word = |next: u32| u64::from(next) << 32 | QUEUED | live;
        if live == 0
            || link.word.compare_exchange(live, word(head), Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return false;
        }
        loop {
            // Release publishes the link. Acquire orders the push before the caller's look at the mutex: whoever has
            // released that without seeing the push did so before.
            match self.head.compare_exchange_weak(head, handle.index + 1, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(current) => {
                    head = current;
                    link.word.store(word(head), Ordering::Relaxed);
                }
            }
        }
    }

    /// Whether there is anything to drain.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed) == 0 && self.backlog.load(Ordering::Relaxed) == 0
    }

    /// As [`is_empty`](Self::is_empty), for a thread that has just released the mutex: it sees every push whose thread
    /// found the mutex taken by this one.
    #[inline]
    pub(crate) fn is_empty_after_unlock(&self) -> bool {
        newest(&self.head) == 0 && self.backlog.load(Ordering::Relaxed) == 0
    }

    /// Hands at most [`DRAIN_LIMIT`] queued blocks to `release`, oldest taken batch first. Called under the mutex.
    pub(crate) fn drain(&self, mut release: impl FnMut(BlockHandle)) {
        let mut next = self.backlog.load(Ordering::Relaxed);
        if next == 0 {
            next = self.head.swap(0, Ordering::Acquire);
        }
        for _ in 0..DRAIN_LIMIT {
            let Some(index) = next.checked_sub(1) else { break };
            let Some(link) = self.link(index) else { unreachable!("a queued block has a link") };
            // No stale handle may queue the block again before it is handed out again.
            let word = link.word.swap(0, Ordering::Relaxed);
            debug_assert_ne!(word & QUEUED, 0, "a block on the list is queued");
            next = (word >> 32) as u32;
            release(BlockHandle { index, generation: (word & (QUEUED - 1)) as u32 });
        }
        self.backlog.store(next, Ordering::Relaxed);
    }

    fn link(&self, index: u32) -> Option<&Link> {
        let (chunk, offset) = locate(index);
        self.chunks.get(chunk)?.get()?.get(offset)
    }
}

/// Chunk `k` holds `FIRST_CHUNK << k` links.
fn locate(index: u32) -> (usize, usize) {
    let position = u64::from(index) + u64::from(FIRST_CHUNK);
    let chunk = position.ilog2() - FIRST_CHUNK.ilog2();
    (chunk as usize, (position - (u64::from(FIRST_CHUNK) << chunk)) as usize)
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn handle(index: u32) -> BlockHandle {
        BlockHandle { index, generation: index % 1000 + 1 }
    }

    #[test]
    fn locate_tiles_the_index_space() {
        let mut expected = (0, 0);
        for index in 0..20_000 {
            assert_eq!(locate(index), expected, "index {index}");
            expected.1 += 1;
            if expected.1 == (FIRST_CHUNK as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
    }

    #[test]
    fn a_block_is_queued_once() {
        let pending = PendingFrees::new();
        assert!(!pending.push(handle(5)), "never handed out");
        pending.prepare(handle(5), 3);
        assert_eq!(pending.size_units(handle(5)), Some(3));
        assert!(pending.push(handle(5)));
        assert!(!pending.push(handle(5)), "queued already");
        let mut seen = Vec::new();
        pending.drain(|block| seen.push(block));
        assert_eq!(seen, [handle(5)]);
        assert!(pending.is_empty());
        assert!(!pending.push(handle(5)), "freed");
        let newer = BlockHandle { generation: 7, ..handle(5) };
        pending.prepare(newer, 1);
        assert!(!pending.push(handle(5)), "the handle of an earlier block");
        assert!(!pending.claim(handle(5)));
        assert!(pending.claim(newer));
        assert!(!pending.claim(newer), "claimed");
        assert!(!pending.push(newer), "claimed");
    }

    #[test]
    fn a_drain_is_bounded_and_loses_nothing() {
        let pending = PendingFrees::new();
        let total = DRAIN_LIMIT as u32 * 2 + 7;
        for index in 0..total {
            pending.prepare(handle(index), 1);
            assert!(pending.push(handle(index)));
        }
        let mut seen = HashSet::new();
        for expected in [DRAIN_LIMIT, DRAIN_LIMIT, 7] {
            assert!(!pending.is_empty());
            let before = seen.len();
            pending.drain(|block| assert!(seen.insert(block.index)));
            assert_eq!(seen.len() - before, expected);
        }
        assert!(pending.is_empty());
    }

    #[test]
    fn pushes_from_many_threads_all_arrive() {
        const PER_THREAD: u32 = 2_000;
        let pending = PendingFrees::new();
        for index in 0..4 * PER_THREAD {
            pending.prepare(handle(index), 1);
        }
        let mut seen = HashSet::new();
        std::thread::scope(|scope| {
            let pushers: Vec<_> = (0..4)
                .map(|thread| {
                    let pending = &pending;
                    scope.spawn(move || {
                        for index in thread * PER_THREAD..(thread + 1) * PER_THREAD {
                            assert!(pending.push(handle(index)));
                        }
                    })
                })
                .collect();
            while pushers.iter().any(|pusher| !pusher.is_finished()) || !pending.is_empty() {
                pending.drain(|block| assert!(seen.insert(block.index)));
            }
        });
        assert_eq!(seen.len(), 4 * PER_THREAD as usize);
    }
}
