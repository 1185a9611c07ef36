//! What is known of a block without the mutex, and frees that found the mutex taken: an intrusive, lock-free list of
//! block handles.
//!
//! Every block has a link here, indexed like its node in the arena, so that pushing needs no memory. The table grows
//! under the allocator mutex when a block with a new index is handed out, before anybody can free it.
//!
//! Invariants:
//! - a block is freed once: by the thread that turns its link from live to 0 or to queued, so a stale handle is found
//!   out at once, whatever its index names meanwhile;
//! - what a link says of its block changes only while the block is nobody's but the writer's: before it is handed out;
//! - `head` is pushed to by any thread and taken as a whole, so that there is no ABA;
//! - `backlog`, what a bounded drain took and did not finish, is changed only under the allocator mutex.

use crate::arena::blocks::next_generation;
use crate::arena::{BlockHandle, RegionSlot};
use crate::chunked::ChunkedTable;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::newest;
use crate::units::ALIGNMENT_BYTES;

/// At most this many blocks are drained in one hold of the mutex: a long drain is an unbounded critical section.
pub(crate) const DRAIN_LIMIT: usize = if cfg!(all(test, loom)) { 2 } else { 256 };

/// Generations have 24 bits.
const QUEUED: u64 = 1 << 31;
/// Beside [`QUEUED`]: the block was parked in a magazine.
const PARKED: u64 = 1 << 30;

/// A field that is written only while its block is the writer's alone: no step of the models.
type Note = std::sync::atomic::AtomicU32;

/// What is known of one block without the mutex.
#[derive(Default)]
pub(crate) struct Link {
    /// 0: the index names no block that may be freed. A generation: that block is live. [`QUEUED`] and a generation
    /// in the low half, perhaps [`PARKED`] too, the next index + 1 in the high half: that block is on the list.
    word: AtomicU64,
    size_units: Note,
    offset_units: Note,
    /// The region's slot in the low half; above it the slack.
    slot_and_slack: Note,
}

/// A block, as its link describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockRecord {
    /// Rounded size.
    pub(crate) size_units: u32,
    /// Start within the region.
    pub(crate) offset_units: u32,
    /// The region.
    pub(crate) slot: RegionSlot,
    /// Rounded size less requested size.
    pub(crate) slack_bytes: u8,
}

impl BlockRecord {
    /// Rounded size.
    pub(crate) fn size_bytes(&self) -> u64 {
        u64::from(self.size_units) * ALIGNMENT_BYTES
    }
}

/// The pending frees of one allocator.
pub(crate) struct PendingFrees {
    head: AtomicU32,
    backlog: AtomicU32,
    links: ChunkedTable<Link>,
}

impl PendingFrees {
    pub(crate) fn new() -> Self {
        PendingFrees { head: AtomicU32::new(0), backlog: AtomicU32::new(0), links: ChunkedTable::new() }
    }

    /// Prepares the link of a block that is being handed out. Called under the mutex.
    pub(crate) fn prepare(&self, handle: BlockHandle, record: &BlockRecord) {
        let link = self.links.get_or_grow(handle.index);
        link.size_units.store(record.size_units, Ordering::Relaxed);
        link.offset_units.store(record.offset_units, Ordering::Relaxed);
        link.write_slot_and_slack(record.slot, record.slack_bytes);
        // Whoever frees the block got its handle from the thread that prepared it.
        link.word.store(u64::from(handle.generation), Ordering::Relaxed);
    }

    /// Hands out again a block that was claimed and has not been given back to the arena: with the next generation, for
    /// a request that leaves `slack_bytes` unused. For the thread that has the block to itself.
    #[inline]
    pub(crate) fn renew(&self, claimed: BlockHandle, slack_bytes: u8) -> Option<(BlockHandle, BlockRecord)> {
        let link = self.link(claimed.index)?;
        let handle = BlockHandle { generation: next_generation(claimed.generation), ..claimed };
        let record = BlockRecord { slack_bytes, ..link.record() };
        link.write_slot_and_slack(record.slot, slack_bytes);
        link.word.store(u64::from(handle.generation), Ordering::Relaxed);
        Some((handle, record))
    }

    /// Whether a handle names a block that was handed out and not freed.
    pub(crate) fn is_live(&self, handle: BlockHandle) -> bool {
        let word = self.link(handle.index).map_or(0, |link| link.word.load(Ordering::Relaxed));
        word != 0 && word == u64::from(handle.generation)
    }

    /// The handle of the live block of an index.
    pub(crate) fn live(&self, index: u32) -> Option<BlockHandle> {
        let word = self.link(index)?.word.load(Ordering::Relaxed);
        let generation = u32::try_from(word).ok().filter(|&word| word != 0 && word & QUEUED as u32 == 0)?;
        Some(BlockHandle { index, generation })
    }

    /// As [`Link::record`]; `None` for an index never handed out.
    pub(crate) fn record(&self, index: u32) -> Option<BlockRecord> {
        Some(self.link(index)?.record())
    }

    /// Queues a block that was parked: it is claimed, and the caller has taken it out of its magazine.
    pub(crate) fn push_parked(&self, handle: BlockHandle) {
        let Some(link) = self.link(handle.index) else { unreachable!("a parked block has a link") };
        let head = self.head.load(Ordering::Relaxed);
        link.word.store(queued(handle, head, QUEUED | PARKED), Ordering::Relaxed);
        self.publish(link, handle, head, QUEUED | PARKED);
    }

    /// Queues a live block. `false` if it was freed or queued before; else `claimed` is called before others may see
    /// the block on the list.
    #[inline]
    pub(crate) fn push(&self, link: &Link, handle: BlockHandle, claimed: impl FnOnce()) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        let (live, word) = (u64::from(handle.generation), queued(handle, head, QUEUED));
        if live == 0 || link.word.compare_exchange(live, word, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return false;
        }
        claimed();
        self.publish(link, handle, head, QUEUED);
        true
    }

    /// Makes a block the head of the list. Its link is queued already, before `head`.
    fn publish(&self, link: &Link, handle: BlockHandle, mut head: u32, marks: u64) {
        loop {
            // Release publishes the link. Acquire orders the push before the caller's look at the mutex: whoever has
            // released that without seeing the push did so before.
            match self.head.compare_exchange_weak(head, handle.index + 1, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(current) => {
                    head = current;
                    link.word.store(queued(handle, head, marks), Ordering::Relaxed);
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
    pub(crate) fn drain(&self, mut release: impl FnMut(Drained)) {
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
            let generation = (word & (PARKED - 1)) as u32;
            release(Drained { handle: BlockHandle { index, generation }, was_parked: word & PARKED != 0 });
        }
        self.backlog.store(next, Ordering::Relaxed);
    }

    /// The link of a block; `None` for an index never handed out.
    #[inline]
    pub(crate) fn link(&self, index: u32) -> Option<&Link> {
        self.links.get(index)
    }
}

impl Link {
    /// Takes the right to free a live block. `false` if the block was freed or queued before.
    #[inline]
    pub(crate) fn claim(&self, handle: BlockHandle) -> bool {
        let live = u64::from(handle.generation);
        live != 0 && self.word.compare_exchange(live, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// What was recorded when the block was handed out. Of meaning to those who know that the block is live, or claim
    /// it afterwards.
    #[inline]
    pub(crate) fn record(&self) -> BlockRecord {
        let slot_and_slack = self.slot_and_slack.load(Ordering::Relaxed);
        BlockRecord {
            size_units: self.size_units.load(Ordering::Relaxed),
            offset_units: self.offset_units.load(Ordering::Relaxed),
            slot: RegionSlot(slot_and_slack as u16),
            slack_bytes: (slot_and_slack >> 16) as u8,
        }
    }

    #[inline]
    fn write_slot_and_slack(&self, slot: RegionSlot, slack_bytes: u8) {
        let word = u32::from(slot.0) | u32::from(slack_bytes) << 16;
        self.slot_and_slack.store(word, Ordering::Relaxed);
    }
}

/// The word of a block on the list before the head.
fn queued(handle: BlockHandle, head: u32, marks: u64) -> u64 {
    u64::from(head) << 32 | marks | u64::from(handle.generation)
}

/// A block that was taken off the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Drained {
    pub(crate) handle: BlockHandle,
    /// It was parked before, not freed by its owner.
    pub(crate) was_parked: bool,
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::arena::blocks::MAX_GENERATION;
    use std::collections::HashSet;

    fn handle(index: u32) -> BlockHandle {
        BlockHandle { index, generation: index % 1000 + 1 }
    }

    const RECORD: BlockRecord =
        BlockRecord { size_units: 3, offset_units: 70_000, slot: RegionSlot(4095), slack_bytes: 128 };

    fn push(pending: &PendingFrees, handle: BlockHandle) -> bool {
        pending.link(handle.index).is_some_and(|link| pending.push(link, handle, || ()))
    }

    fn claim(pending: &PendingFrees, handle: BlockHandle) -> bool {
        pending.link(handle.index).is_some_and(|link| link.claim(handle))
    }

    #[test]
    fn a_block_is_queued_once() {
        let pending = PendingFrees::new();
        assert!(!push(&pending, handle(5)), "never handed out");
        pending.prepare(handle(5), &RECORD);
        assert_eq!(pending.record(5), Some(RECORD));
        assert!(push(&pending, handle(5)));
        assert!(!push(&pending, handle(5)), "queued already");
        let mut seen = Vec::new();
        pending.drain(|block| seen.push(block));
        assert_eq!(seen, [Drained { handle: handle(5), was_parked: false }]);
        assert!(pending.is_empty());
        assert!(!push(&pending, handle(5)), "freed");
        let newer = BlockHandle { generation: 7, ..handle(5) };
        pending.prepare(newer, &RECORD);
        assert!(!push(&pending, handle(5)), "the handle of an earlier block");
        assert!(!claim(&pending, handle(5)));
        assert!(claim(&pending, newer));
        assert!(!claim(&pending, newer), "claimed");
        assert!(!push(&pending, newer), "claimed");
    }

    #[test]
    fn a_claimed_block_is_handed_out_again_or_queued() {
        let pending = PendingFrees::new();
        let first = BlockHandle { index: 1, generation: MAX_GENERATION };
        pending.prepare(first, &RECORD);
        assert!(pending.is_live(first) && claim(&pending, first) && !pending.is_live(first));
        let (second, record) = pending.renew(first, 5).unwrap();
        assert_eq!(second, BlockHandle { index: 1, generation: 1 });
        assert_eq!(record, BlockRecord { slack_bytes: 5, ..RECORD });
        assert!(pending.is_live(second) && !claim(&pending, first) && claim(&pending, second));
        pending.push_parked(second);
        assert!(!push(&pending, second) && !claim(&pending, second), "queued");
        pending.drain(|block| assert_eq!(block, Drained { handle: second, was_parked: true }));
        assert!(pending.is_empty());
    }

    #[test]
    fn a_drain_is_bounded_and_loses_nothing() {
        let pending = PendingFrees::new();
        let total = DRAIN_LIMIT as u32 * 2 + 7;
        for index in 0..total {
            pending.prepare(handle(index), &RECORD);
            assert!(push(&pending, handle(index)));
        }
        let mut seen = HashSet::new();
        for expected in [DRAIN_LIMIT, DRAIN_LIMIT, 7] {
            assert!(!pending.is_empty());
            let before = seen.len();
            pending.drain(|block| assert!(seen.insert(block.handle.index)));
            assert_eq!(seen.len() - before, expected);
        }
        assert!(pending.is_empty());
    }

    #[test]
    fn pushes_from_many_threads_all_arrive() {
        const PER_THREAD: u32 = 2_000;
        let pending = PendingFrees::new();
        for index in 0..4 * PER_THREAD {
            pending.prepare(handle(index), &RECORD);
        }
        let mut seen = HashSet::new();
        std::thread::scope(|scope| {
            let pushers: Vec<_> = (0..4)
                .map(|thread| {
                    let pending = &pending;
                    scope.spawn(move || {
                        for index in thread * PER_THREAD..(thread + 1) * PER_THREAD {
                            assert!(push(pending, handle(index)));
                        }
                    })
                })
                .collect();
            while pushers.iter().any(|pusher| !pusher.is_finished()) || !pending.is_empty() {
                pending.drain(|block| assert!(seen.insert(block.handle.index)));
            }
        });
        assert_eq!(seen.len(), 4 * PER_THREAD as usize);
    }
}
