//! loom: a block that is parked, taken and taken back at the same time goes to one thread, and none is left behind.

use crate::arena::BlockHandle;
use crate::model_world::{BLOCK, allocate, allocator_with_magazines};
use crate::sync::model::check;
use crate::sync::thread::spawn;
use crate::{AllocationDirective, FlexAllocator};

fn block(allocator: &FlexAllocator) -> BlockHandle {
    allocator.allocate_block(BLOCK, &AllocationDirective::default()).unwrap().0
}

/// An allocator of so many blocks that has given this thread a magazine; it holds none.
fn warm(blocks: u64) -> FlexAllocator {
    let allocator = allocator_with_magazines(blocks);
    allocator.free_block(block(&allocator)).unwrap();
    allocator
}

/// Takes back what is parked, as a request does that is under pressure. Whether there was anything.
fn take_back(allocator: &FlexAllocator) -> bool {
    let shared = allocator.shared();
    shared.take_back_parked(shared.lock().unwrap().state().unwrap())
}

fn assert_all_free(allocator: &FlexAllocator) {
    allocator.validate().unwrap();
    let statistics = allocator.statistics().unwrap();
    assert_eq!((statistics.allocated_bytes.current, statistics.allocation.current), (0, 0));
    assert_eq!(statistics.free_bytes, statistics.capacity_bytes);
}

/// Two threads: one parks a block, the other suspends parking and takes back. At most three preemptions.
#[test]
fn no_block_stays_parked_while_parking_is_suspended() {
    check(Some(3), || {
        let allocator = warm(1);
        let handle = block(&allocator);
        let taker = {
            let allocator = allocator.clone();
            spawn(move || {
                allocator.shared().parking.suspend();
                take_back(&allocator);
            })
        };
        allocator.free_block(handle).unwrap();
        taker.join().unwrap();
        assert!(!take_back(&allocator), "a block was parked after the suspension");
        assert_all_free(&allocator);
    });
}

/// Two threads: one takes its parked block and frees it again, the other takes back. At most two preemptions.
#[test]
fn a_parked_block_goes_to_one_thread() {
    check(Some(2), || {
        let allocator = warm(2);
        let parked = block(&allocator);
        allocator.free_block(parked).unwrap();
        let taker = {
            let allocator = allocator.clone();
            spawn(move || {
                take_back(&allocator);
                allocate(&allocator).unwrap()
            })
        };
        let first = allocate(&allocator).unwrap();
        let second = taker.join().unwrap();
        assert_ne!(first.chunks().next(), second.chunks().next(), "both have the same block");
        assert!(allocator.free_block(parked).is_err());
        drop((first, second));
        assert_all_free(&allocator);
    });
}

/// Three threads: one parks a block, another frees it with the same handle, a third takes back. At most two
/// preemptions.
#[test]
fn a_block_is_parked_or_freed_once() {
    check(Some(2), || {
        let allocator = warm(1);
        let handle = block(&allocator);
        let rival = {
            let allocator = allocator.clone();
            spawn(move || allocator.free_block(handle).is_ok())
        };
        let taker = {
            let allocator = allocator.clone();
            spawn(move || take_back(&allocator))
        };
        let own = allocator.free_block(handle).is_ok();
        assert_ne!(own, rival.join().unwrap());
        taker.join().unwrap();
        assert_all_free(&allocator);
    });
}

/// Two threads: one frees more than its rack holds, the other has the mutex now and then. At most three preemptions.
#[test]
fn what_a_full_rack_gives_back_arrives() {
    check(Some(3), || {
        let allocator = warm(3);
        let handles = [block(&allocator), block(&allocator), block(&allocator)];
        let looker = {
            let allocator = allocator.clone();
            spawn(move || allocator.while_locked(|| ()).unwrap())
        };
        handles.into_iter().for_each(|handle| allocator.free_block(handle).unwrap());
        looker.join().unwrap();
        assert!(allocator.shared().pending.is_empty(), "somebody has drained what was pending");
        assert_all_free(&allocator);
    });
}

/// Two threads: one ends with a block in its magazine, the other has the mutex now and then. At most three preemptions.
#[test]
fn a_thread_that_ends_leaves_no_block() {
    check(Some(3), || {
        let allocator = allocator_with_magazines(1);
        let ending = {
            let allocator = allocator.clone();
            spawn(move || {
                allocator.free_block(block(&allocator)).unwrap();
                allocator.free_block(block(&allocator)).unwrap();
            })
        };
        allocator.while_locked(|| ()).unwrap();
        ending.join().unwrap();
        assert!(!take_back(&allocator), "its magazine is empty");
        assert_all_free(&allocator);
    });
}
