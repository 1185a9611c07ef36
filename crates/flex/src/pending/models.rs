//! loom: no free is lost or doubled, and none is stranded between a drain and an unlock.

use std::collections::HashSet;
use std::sync::Arc;

use super::*;
use crate::model_world::{BLOCK, allocator};
use crate::sync::model::{check, with_plain_reads};
use crate::sync::thread;
use crate::{AllocationDirective, FlexAllocator};

const RECORD: BlockRecord =
    BlockRecord { size_units: 1, offset_units: 0, slot: RegionSlot(0), slack_bytes: 0 };

fn handle(index: u32) -> BlockHandle {
    BlockHandle { index, generation: index + 1 }
}

/// A list with the links of so many blocks.
fn list(blocks: u32) -> Arc<PendingFrees> {
    let pending = PendingFrees::new();
    (0..blocks).for_each(|index| pending.prepare(handle(index), &RECORD));
    Arc::new(pending)
}

fn push(pending: &PendingFrees, handle: BlockHandle) -> bool {
    pending.push(pending.link(handle.index).unwrap(), handle, || ())
}

fn drain_into(pending: &PendingFrees, seen: &mut HashSet<BlockHandle>) {
    let before = seen.len();
    pending.drain(|block| assert!(seen.insert(block.handle), "{block:?} came twice"));
    assert!(seen.len() - before <= DRAIN_LIMIT);
}

/// Three threads: two push, one drains in batches of two. Every interleaving.
#[test]
fn pushes_against_a_bounded_drain_arrive_once() {
    check(None, || {
        let pending = list(4);
        let push = |first: u32, count: u32| {
            let pending = Arc::clone(&pending);
            thread::spawn(move || {
                (first..first + count).for_each(|index| assert!(push(&pending, handle(index))))
            })
        };
        let pushers = [push(0, 2), push(2, 1)];
        let mut seen = HashSet::new();
        drain_into(&pending, &mut seen);
        drain_into(&pending, &mut seen);
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        while !pending.is_empty() {
            drain_into(&pending, &mut seen);
        }
        assert_eq!(seen, (0..3).map(handle).collect());
    });
}

/// Three threads: two note something about a block without an order of their own and push it, one drains. Every
/// interleaving.
#[test]
fn what_happened_to_a_block_before_its_free_is_seen_after_it() {
    check(None, || {
        let pending = list(2);
        let notes: Arc<[AtomicU32; 2]> = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let free = |index: u32| {
            let (pending, notes) = (Arc::clone(&pending), Arc::clone(&notes));
            thread::spawn(move || {
                notes[index as usize].store(1, Ordering::Relaxed);
                assert!(push(&pending, handle(index)));
            })
        };
        let frees = [free(0), free(1)];
        pending.drain(|block| {
            let note = notes[block.handle.index as usize].load(Ordering::Relaxed);
            assert_eq!(note, 1, "a push does not publish what came before");
        });
        frees.into_iter().for_each(|free| free.join().unwrap());
    });
}

/// Three threads: two free the same block, one drains. Every interleaving.
#[test]
fn a_double_push_is_refused() {
    check(None, || {
        let pending = list(1);
        let push = || {
            let pending = Arc::clone(&pending);
            thread::spawn(move || push(&pending, handle(0)))
        };
        let pushers = [push(), push()];
        let mut drained = 0;
        pending.drain(|_| drained += 1);
        let accepted =
            pushers.map(|pusher| pusher.join().unwrap()).into_iter().filter(|first| *first).count();
        pending.drain(|_| drained += 1);
        assert!(pending.is_empty());
        assert_eq!((accepted, drained), (1, 1), "accepted, drained");
    });
}

/// Two threads free the same block: one has the mutex and claims it, the other pushes it. Every interleaving.
#[test]
fn a_block_is_claimed_or_pushed_but_not_both() {
    check(None, || {
        let pending = list(1);
        let pusher = {
            let pending = Arc::clone(&pending);
            thread::spawn(move || push(&pending, handle(0)))
        };
        let claimed = pending.link(0).unwrap().claim(handle(0));
        let mut drained = 0;
        pending.drain(|_| drained += 1);
        let pushed = pusher.join().unwrap();
        pending.drain(|_| drained += 1);
        assert_ne!(claimed, pushed);
        assert_eq!(drained, usize::from(pushed));
    });
}

/// Two threads: a block is drained, handed out again and freed by its new owner, against another push.
#[test]
fn a_block_may_be_pushed_again_as_soon_as_it_is_released() {
    check(None, || {
        let pending = list(2);
        assert!(push(&pending, handle(0)));
        let other = {
            let pending = Arc::clone(&pending);
            thread::spawn(move || assert!(push(&pending, handle(1))))
        };
        let again = BlockHandle { index: 0, generation: 9 };
        let mut seen = HashSet::new();
        pending.drain(|block| {
            seen.insert(block.handle);
            if block.handle == handle(0) {
                pending.prepare(again, &RECORD);
                assert!(push(&pending, again), "its link is free before the block is released");
            }
        });
        other.join().unwrap();
        while !pending.is_empty() {
            drain_into(&pending, &mut seen);
        }
        assert_eq!(seen, HashSet::from([handle(0), handle(1), again]));
    });
}

/// Frees `freed` blocks, each on a thread, while this thread holds and releases the mutex. Nobody drains on purpose.
fn free_against_unlock(freed: usize) {
    let allocator: FlexAllocator = allocator(4);
    let block = || allocator.allocate_block(BLOCK, &AllocationDirective::default()).unwrap().0;
    let handles: Vec<_> = (0..freed).map(|_| block()).collect();
    let frees: Vec<_> = handles
        .iter()
        .map(|&handle| {
            let allocator = allocator.clone();
            thread::spawn(move || allocator.free_block(handle).unwrap())
        })
        .collect();
    allocator.while_locked(|| ()).unwrap();
    frees.into_iter().for_each(|free| free.join().unwrap());
    assert!(!allocator.has_pending_frees(), "a free was stranded");
}

/// Two threads, every interleaving: `push; try_lock` against `unlock; look; try_lock`.
#[test]
fn a_free_is_not_stranded_by_an_unlock() {
    check(None, || free_against_unlock(1));
}

/// Three threads, at most four preemptions.
#[test]
fn two_frees_are_not_stranded_by_an_unlock() {
    check(Some(4), || free_against_unlock(2));
}

/// The mutant: with a plain look after the unlock loom finds the execution in which nobody sees the free.
#[test]
#[should_panic(expected = "a free was stranded")]
fn with_a_plain_look_a_free_is_stranded() {
    with_plain_reads(|| check(None, || free_against_unlock(1)));
}
