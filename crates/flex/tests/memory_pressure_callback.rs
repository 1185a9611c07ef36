//! The memory-pressure callback: when it is called, with what, what its answer means, and what is left behind.

#[path = "common/support.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use flex::pressure::{MAX_ATTEMPTS, PressureCause, SkipReason, Verdict};
use flex::{AllocationDirective, DomainId, FlexAllocator};
use support::*;

/// A full device of sixteen blocks.
fn full() -> (FlexAllocator, Hoard) {
    let allocator = allocator(64 * KIB);
    let hoard = Hoard::of(allocate_many(&allocator, 16, 4 * KIB));
    (allocator, hoard)
}

fn out_of_memory_panic(allocator: &FlexAllocator) -> String {
    let result = catch_unwind(AssertUnwindSafe(|| allocate(allocator, 4 * KIB).map(drop)));
    let payload = result.expect_err("the callback panics");
    (*payload.downcast_ref::<&str>().expect("a text")).to_owned()
}

#[test]
fn it_is_called_with_the_locked_guard_and_the_request() {
    let (allocator, hoard) = full();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (log, blocks, handle) = (Arc::clone(&seen), hoard.clone(), allocator.clone());
    set_callback(&allocator, move |guard, request| {
        let attempts_before = u64::from(request.attempt() - 1);
        assert_eq!(guard.statistics().unwrap().allocation.current, 16 - attempts_before);
        assert_eq!((request.requested_bytes(), request.domains()), (5000, [DomainId(0)].as_slice()));
        log.lock().unwrap().push((
            request.attempt(),
            request.free_bytes(),
            request.largest_free_bytes(),
            request.cause(),
            request.report().skipped,
        ));
        // Only once unlocked can others lock.
        let allocated = guard.unlocked(|_| {
            blocks.free_one();
            handle.statistics().unwrap().allocation.current
        });
        assert!(allocated.unwrap() < 16);
        Verdict::Retry
    });
    let rescued = allocate(&allocator, 5000).unwrap();
    assert_eq!(rescued.size_bytes(), 5120);
    // One block was not enough; the figures stay those of the first search.
    let expected = |attempt| (attempt, 0, 0, PressureCause::Exhausted, None);
    assert_eq!(*seen.lock().unwrap(), [expected(1), expected(2)]);
    let pressure = allocator.pressure_statistics();
    assert_eq!((pressure.events, pressure.rescued, pressure.failed, pressure.coalesced), (1, 1, 0, 1));
    assert_eq!(allocator.statistics().unwrap().num_alloc_retries, 1);
    check(&allocator, 14 * 4 * KIB + 5120);
}

#[test]
fn scattered_free_memory_is_fragmentation() {
    let (allocator, hoard) = full();
    let mut blocks = hoard.take();
    blocks.sort_by_key(|block| block.chunks().next().unwrap().address.offset_bytes);
    for index in [14, 12, 10] {
        drop(blocks.remove(index));
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    set_callback(&allocator, move |_, request| {
        log.lock().unwrap().push((request.free_bytes(), request.largest_free_bytes(), request.cause()));
        Verdict::GiveUp
    });
    let report = expect_out_of_memory(allocate(&allocator, 12 * KIB));
    assert_eq!((report.free_bytes, report.largest_free_bytes, report.possible), (12 * KIB, 4 * KIB, true));
    expect_out_of_memory(allocate(&allocator, 12 * KIB + 1));
    assert_eq!(
        *seen.lock().unwrap(),
        [(12 * KIB, 4 * KIB, PressureCause::Fragmented), (12 * KIB, 4 * KIB, PressureCause::Exhausted)]
    );
    check(&allocator, 13 * 4 * KIB);
}

#[test]
fn no_callback_is_an_error_with_its_reason() {
    let (allocator, _hoard) = full();
    let report = expect_out_of_memory(allocate(&allocator, 128));
    assert_eq!(report.reclaim.skipped, Some(SkipReason::Uninitialized));
    assert_eq!((report.requested_bytes, report.free_bytes, report.capacity_bytes), (128, 0, 64 * KIB));
    let skipped = allocator.pressure_statistics().skipped;
    assert_eq!(skipped.iter().sum::<u64>(), 1);
    check(&allocator, 64 * KIB);
}

#[test]
fn progress_is_what_the_search_finds_not_what_the_callback_says() {
    let (allocator, hoard) = full();
    let blocks = hoard.clone();
    set_callback(&allocator, move |guard, _| {
        guard.unlocked(|_| blocks.free_one()).unwrap();
        Verdict::GiveUp
    });
    let first = allocate(&allocator, 4 * KIB).unwrap();
    set_callback(&allocator, |_, _| Verdict::GiveUp);
    expect_out_of_memory(allocate(&allocator, 4 * KIB));
    drop(first);
    check(&allocator, 15 * 4 * KIB);
}

#[test]
fn retries_are_bounded() {
    let (allocator, hoard) = full();
    let calls = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&calls);
    set_callback(&allocator, move |_, request| {
        assert_eq!(request.attempt(), count.fetch_add(1, Ordering::Relaxed) + 1);
        Verdict::Retry
    });
    expect_out_of_memory(allocate(&allocator, 4 * KIB));
    assert_eq!(calls.load(Ordering::Relaxed), MAX_ATTEMPTS);
    // The last call may still help.
    let blocks = hoard.clone();
    set_callback(&allocator, move |guard, request| {
        if request.attempt() == MAX_ATTEMPTS {
            guard.unlocked(|_| blocks.free_one()).unwrap();
        }
        Verdict::Retry
    });
    let _rescued = allocate(&allocator, 4 * KIB).unwrap();
    check(&allocator, 64 * KIB);
}

#[test]
fn a_search_inside_the_callback_serves_the_request() {
    let (allocator, hoard) = full();
    let blocks = hoard.clone();
    set_callback(&allocator, move |guard, request| {
        assert!(!guard.search(request).unwrap());
        guard.unlocked(|_| blocks.free_one()).unwrap();
        assert!(guard.search(request).unwrap());
        assert!(guard.search(request).unwrap(), "once true, it stays true");
        Verdict::Retry
    });
    let _rescued = allocate(&allocator, 4 * KIB).unwrap();
    check(&allocator, 64 * KIB);
}

#[test]
fn registration_returns_the_previous_one() {
    let (allocator, _hoard) = full();
    let calls: Arc<[AtomicU32; 2]> = Arc::default();
    let counting = |index: usize| {
        let calls = Arc::clone(&calls);
        callback(move |_, _| {
            calls[index].fetch_add(1, Ordering::Relaxed);
            Verdict::GiveUp
        })
    };
    let (first, second) = (counting(0), counting(1));
    assert!(allocator.set_memory_pressure_callback(Some(Arc::clone(&first))).unwrap().is_none());
    expect_out_of_memory(allocate(&allocator, 128));
    let previous = allocator.set_memory_pressure_callback(Some(Arc::clone(&second))).unwrap();
    assert!(Arc::ptr_eq(&previous.unwrap(), &first));
    expect_out_of_memory(allocate(&allocator, 128));
    let previous = allocator.set_memory_pressure_callback(None).unwrap();
    assert!(Arc::ptr_eq(&previous.unwrap(), &second));
    expect_out_of_memory(allocate(&allocator, 128));
    assert_eq!(calls.each_ref().map(|count| count.load(Ordering::Relaxed)), [1, 1]);
    assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (1, 1));
}

#[test]
fn an_impossible_request_is_no_event() {
    let (allocator, _hoard) = full();
    set_callback(&allocator, |_, _| panic!("not for a request that no state could serve"));
    let report = expect_out_of_memory(allocate(&allocator, 64 * KIB + 1));
    assert!(!report.possible);
    assert_eq!((report.largest_region_bytes, report.reclaim.skipped), (64 * KIB, None));
    allocator.set_limit_bytes(Some(1024)).unwrap();
    assert!(!expect_out_of_memory(allocate(&allocator, 1025)).possible);
    allocator.set_limit_bytes(None).unwrap();
    assert_eq!(allocator.pressure_statistics().events, 0);
    let statistics = allocator.statistics().unwrap();
    assert_eq!((statistics.num_ooms, statistics.num_alloc_retries), (2, 0));
}

#[test]
fn a_nested_request_fails_at_once() {
    let (allocator, hoard) = full();
    let nested = Arc::new(Mutex::new(Vec::new()));
    let (reports, handle, blocks) = (Arc::clone(&nested), allocator.clone(), hoard.clone());
    set_callback(&allocator, move |guard, _| {
        let report = guard.unlocked(|_| {
            let report = expect_out_of_memory(allocate(&handle, 8 * KIB));
            blocks.free_one();
            // What is free may be had in the callback too.
            drop(allocate(&handle, 4 * KIB).unwrap());
            report
        });
        reports.lock().unwrap().push(report.unwrap().reclaim.skipped);
        Verdict::GiveUp
    });
    let _rescued = allocate(&allocator, 4 * KIB).unwrap();
    assert_eq!(*nested.lock().unwrap(), [Some(SkipReason::Reentrant)]);
    let pressure = allocator.pressure_statistics();
    assert_eq!((pressure.events, pressure.rescued, pressure.failed), (2, 1, 1));
    check(&allocator, 64 * KIB);
}

#[test]
fn the_mark_of_being_in_pressure_ends_with_a_panic() {
    let (allocator, hoard) = full();
    set_callback(&allocator, |_, _| panic!("looking"));
    assert_eq!(out_of_memory_panic(&allocator), "looking");
    let blocks = hoard.clone();
    set_callback(&allocator, move |guard, _| {
        guard.unlocked(|_| blocks.free_one()).unwrap();
        Verdict::GiveUp
    });
    let _rescued = allocate(&allocator, 4 * KIB).unwrap();
    let pressure = allocator.pressure_statistics();
    assert_eq!((pressure.events, pressure.rescued, pressure.failed), (2, 1, 1));
    check(&allocator, 64 * KIB);
}

#[test]
fn unlocked_locks_again_on_return_and_on_unwind() {
    let (allocator, hoard) = full();
    let (handle, blocks) = (allocator.clone(), hoard.clone());
    set_callback(&allocator, move |guard, _| {
        assert_eq!(guard.unlocked(|_| 7).unwrap(), 7);
        assert_eq!(guard.statistics().unwrap().allocation.current, 16);
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            guard.unlocked(|_| {
                handle.statistics().unwrap();
                panic!("in the body")
            })
        }));
        assert!(unwound.is_err());
        // Locked again: the guard works, and others go to the pending list.
        assert_eq!(guard.statistics().unwrap().allocation.current, 16);
        blocks.free_one();
        assert_eq!(guard.statistics().unwrap().allocation.current, 15);
        Verdict::GiveUp
    });
    let _rescued = allocate(&allocator, 4 * KIB).unwrap();
    check(&allocator, 64 * KIB);
}

#[test]
fn a_panic_in_the_body_reaches_the_caller_and_leaves_the_mutex_usable() {
    let (allocator, hoard) = full();
    set_callback(&allocator, |guard, _| guard.unlocked(|_| panic!("in the body")).unwrap());
    assert_eq!(out_of_memory_panic(&allocator), "in the body");
    assert_eq!(allocator.pressure_statistics().failed, 1);
    hoard.free_one();
    let _next = allocate(&allocator, 4 * KIB).unwrap();
    check(&allocator, 64 * KIB);
}

#[test]
fn what_a_panicking_callback_had_found_goes_back() {
    let (allocator, hoard) = full();
    let blocks = hoard.clone();
    set_callback(&allocator, move |guard, request| {
        guard.unlocked(|_| blocks.free_one()).unwrap();
        assert!(guard.search(request).unwrap());
        panic!("with memory")
    });
    assert_eq!(out_of_memory_panic(&allocator), "with memory");
    assert_eq!(allocator.statistics().unwrap().allocation.current, 15);
    check(&allocator, 15 * 4 * KIB);
}

#[test]
fn what_a_registered_request_was_granted_goes_back() {
    let (allocator, hoard) = full();
    let (blocks, handle) = (hoard.clone(), allocator.clone());
    set_callback(&allocator, move |guard, request| {
        guard.register(request, None).unwrap();
        guard.register(request, None).unwrap();
        let allocated = guard.unlocked(|_| {
            blocks.free_one();
            handle.statistics().unwrap().allocation.current
        });
        assert_eq!(allocated.unwrap(), 16, "whoever frees serves the registered request");
        if request.requested_bytes() == 4 * KIB { panic!("registered") } else { Verdict::GiveUp }
    });
    assert_eq!(out_of_memory_panic(&allocator), "registered");
    assert_eq!(allocator.statistics().unwrap().allocation.current, 15);
    let filler = allocate(&allocator, 4 * KIB).unwrap();
    let rescued = allocate(&allocator, 4000).unwrap();
    // The registration has ended: frees are nobody's.
    drop((rescued, filler));
    hoard.free_one();
    check(&allocator, 13 * 4 * KIB);
}

#[test]
fn an_interleaved_request_calls_once_and_rolls_back() {
    let (allocator, _device) = on_device(&tensor_regions(&[(0, 8 * KIB), (1, 8 * KIB)]));
    let hoard = Hoard::of(vec![allocator.allocate(8 * KIB, &bound(1)).unwrap()]);
    let calls = Arc::new(AtomicU32::new(0));
    let (count, blocks, handle) = (Arc::clone(&calls), hoard.clone(), allocator.clone());
    set_callback(&allocator, move |guard, request| {
        count.fetch_add(1, Ordering::Relaxed);
        assert_eq!(request.domains(), [DomainId(0), DomainId(1)]);
        guard
            .unlocked(|_| {
                // The chunk in domain 0 has been given up meanwhile.
                drop(handle.allocate(8 * KIB, &bound(0)).unwrap());
                blocks.free_one();
            })
            .unwrap();
        Verdict::Retry
    });
    let both = allocator.allocate(16 * KIB, &interleaved(&[0, 1])).unwrap();
    assert_eq!((both.chunks().len(), both.size_bytes()), (2, 16 * KIB));
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(allocator.pressure_statistics().events, 1);
    check(&allocator, 16 * KIB);
    drop(both);
    check(&allocator, 0);
}

#[test]
fn a_limit_is_pressure_too() {
    let allocator = allocator(64 * KIB);
    allocator.set_limit_bytes(Some(8 * KIB)).unwrap();
    let hoard = Hoard::of(allocate_many(&allocator, 2, 4 * KIB));
    let blocks = hoard.clone();
    set_callback(&allocator, move |guard, request| {
        assert_eq!((request.free_bytes(), request.cause()), (0, PressureCause::Exhausted));
        guard.unlocked(|_| blocks.free_one()).unwrap();
        Verdict::GiveUp
    });
    let _rescued = allocate(&allocator, 4 * KIB).unwrap();
    check(&allocator, 8 * KIB);
}

#[test]
fn blocks_for_foreign_owners_go_the_same_way() {
    let (allocator, hoard) = full();
    let blocks = hoard.clone();
    set_callback(&allocator, move |guard, _| {
        guard.unlocked(|_| blocks.free_one()).unwrap();
        Verdict::GiveUp
    });
    let (block, chunk) = allocator.allocate_block(4000, &AllocationDirective::default()).unwrap();
    assert_eq!((chunk.size_bytes, allocator.block_size_bytes(block)), (4096, 4096));
    allocator.free_block(block).unwrap();
    assert!(allocator.free_block(block).is_err());
    check(&allocator, 15 * 4 * KIB);
}

#[test]
fn counters_reset_during_an_event_still_add_up() {
    let _watchdog = watchdog();
    let allocator = allocator(64 * KIB);
    let hoard = Hoard::of(allocate_many(&allocator, 16, 4 * KIB));
    let (handle, kept) = (allocator.clone(), hoard.clone());
    set_callback(&allocator, move |guard, _| {
        guard.unlocked(|_| handle.reset_pressure_statistics()).unwrap();
        kept.free_one();
        Verdict::GiveUp
    });
    drop(allocate(&allocator, 4 * KIB).unwrap());
    let pressure = allocator.pressure_statistics();
    assert_eq!((pressure.events, pressure.rescued, pressure.failed), (1, 1, 0));
    drop(hoard.take());
    check(&allocator, 0);
}
