//! Magazines and the allocator together: what is parked is free, is found when it is wanted, and is counted exactly.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use super::rack::{Class, LARGEST_UNITS, PATIENCE, RACKS};
use crate::addresses_only::AddressesOnly;
use crate::directive::Lane;
use crate::pressure::{SharedCallback, Verdict};
use crate::{
    ALIGNMENT_BYTES, AllocationDirective, AllocatorOptions, BlockHandle, Chunk, CompositeAddress, DomainId,
    FlexAllocator, FlexError, MemoryType, RegionLayout, Topology,
};

mod statistics;

const KIB: u64 = 1024;

fn allocator(capacity_bytes: u64) -> FlexAllocator {
    let topology = Topology::uniform(capacity_bytes).unwrap();
    FlexAllocator::new(Arc::new(AddressesOnly::default()), &topology, AllocatorOptions::default()).unwrap()
}

fn allocate(allocator: &FlexAllocator, bytes: u64) -> (BlockHandle, Chunk) {
    allocator.allocate_block(bytes, &AllocationDirective::default()).unwrap()
}

fn owned(allocator: &FlexAllocator, bytes: u64) -> CompositeAddress {
    allocator.allocate(bytes, &AllocationDirective::default()).unwrap()
}

/// The second free of a size parks; the first makes the magazine.
fn warm(allocator: &FlexAllocator) {
    allocator.free_block(allocate(allocator, 128).0).unwrap();
}

/// How many blocks the arena calls occupied, whatever is parked.
fn occupied_blocks(allocator: &FlexAllocator) -> usize {
    let mut guard = allocator.shared().lock().unwrap();
    let regions = guard.state().unwrap().arena.snapshot();
    regions.iter().flat_map(|region| &region.blocks).filter(|block| block.occupied).count()
}

fn assert_empty(allocator: &FlexAllocator) {
    allocator.validate().unwrap();
    let statistics = allocator.statistics().unwrap();
    assert_eq!(statistics.allocated_bytes.current, 0);
    assert_eq!(statistics.requested_bytes.current, 0);
    assert_eq!(statistics.allocation.current, 0);
    assert_eq!(statistics.free_bytes, statistics.capacity_bytes);
    assert_eq!(occupied_blocks(allocator), 0);
}

#[test]
fn a_pair_takes_no_lock() {
    let allocator = allocator(1 << 20);
    let (send, receive) = mpsc::channel();
    let (go_on, wait) = mpsc::channel();
    let remote = allocator.clone();
    let other = thread::spawn(move || {
        warm(&remote);
        let first = allocate(&remote, 1000);
        remote.free_block(first.0).unwrap();
        send.send(()).unwrap();
        wait.recv().unwrap();
        let second = allocate(&remote, 1020);
        remote.free_block(second.0).unwrap();
        send.send(()).unwrap();
        assert_eq!(first.1, second.1, "it is the same block");
        assert_ne!(first.0, second.0, "and another allocation");
    });
    receive.recv().unwrap();
    let done = allocator.while_locked(|| {
        go_on.send(()).unwrap();
        receive.recv_timeout(Duration::from_secs(60))
    });
    assert_eq!(done, Ok(Ok(())), "it waited for the mutex");
    other.join().unwrap();
    assert_empty(&allocator);
}

#[test]
fn a_parked_block_is_free_to_everybody() {
    let allocator = allocator(1 << 20);
    warm(&allocator);
    let block = owned(&allocator, 4 * KIB);
    let (reference, handle) = (block.reference(), block.into_block().unwrap());
    allocator.free_block(handle).unwrap();
    assert_eq!(occupied_blocks(&allocator), 1, "it is parked");
    assert!(!reference.is_live());
    assert_eq!(allocator.block(handle), Ok(None));
    assert!(matches!(allocator.free_block(handle), Err(FlexError::UnknownAllocation { .. })));
    let again = allocate(&allocator, 4 * KIB).0;
    assert!(allocator.free_block(handle).is_err(), "the block has another owner");
    assert_eq!(allocator.block(again).unwrap().unwrap().size_bytes, 4 * KIB);
    allocator.free_block(again).unwrap();
    assert_empty(&allocator);
    assert!(allocator.free_block(again).is_err(), "it is back in the arena");
    assert_eq!(allocator.empty_cache(), Ok(1 << 20), "nothing holds the region");
}

#[test]
fn parked_memory_is_found_before_a_request_is_under_pressure() {
    let allocator = allocator(64 * KIB);
    warm(&allocator);
    let blocks: Vec<_> = (0..16).map(|_| allocate(&allocator, 4 * KIB).0).collect();
    blocks.iter().for_each(|&block| allocator.free_block(block).unwrap());
    assert_eq!(occupied_blocks(&allocator), 2, "more are not parked on so small a device");
    let whole = owned(&allocator, 64 * KIB);
    assert_eq!(allocator.pressure_statistics().events, 0);
    assert_eq!(allocator.statistics().unwrap().num_alloc_retries, 0);
    drop(whole);
    assert_empty(&allocator);
}

#[test]
fn nothing_is_parked_while_a_request_is_under_pressure() {
    let allocator = allocator(64 * KIB);
    warm(&allocator);
    let mut blocks: Vec<_> = (0..16).map(|_| allocate(&allocator, 4 * KIB).0).collect();
    let (block, remote) = (blocks.pop().unwrap(), allocator.clone());
    let callback: SharedCallback = Arc::new(
        move |guard: &mut crate::AllocatorGuard<'_>, request: &mut crate::pressure::PressureRequest| {
            guard.register(request, None).unwrap();
            guard.unlocked(|_| remote.free_block(block).unwrap()).unwrap();
            let granted = guard.state().unwrap().waiters.granted().count();
            assert_eq!(granted, 1, "the free serves the request at once");
            Verdict::GiveUp
        },
    );
    allocator.set_memory_pressure_callback(Some(callback)).unwrap();
    blocks.push(allocate(&allocator, 4 * KIB).0);
    let pressure = allocator.pressure_statistics();
    assert_eq!((pressure.events, pressure.rescued), (1, 1));
    blocks.iter().for_each(|&block| allocator.free_block(block).unwrap());
    assert!(occupied_blocks(&allocator) > 0, "parking goes on after it");
    assert_empty(&allocator);
}

#[test]
fn a_limit_is_kept_by_the_arena() {
    let allocator = allocator(1 << 20);
    warm(&allocator);
    allocator.set_limit_bytes(Some(8 * KIB)).unwrap();
    allocator.set_limit_bytes(Some(4 * KIB)).unwrap();
    let block = allocate(&allocator, 4 * KIB).0;
    assert!(allocator.allocate(128, &AllocationDirective::default()).is_err());
    allocator.free_block(block).unwrap();
    assert_eq!(occupied_blocks(&allocator), 0, "nothing is parked");
    allocator.set_limit_bytes(None).unwrap();
    allocator.free_block(allocate(&allocator, 4 * KIB).0).unwrap();
    assert_eq!(occupied_blocks(&allocator), 1);
    assert_empty(&allocator);
}

#[test]
fn a_thread_that_ends_gives_its_magazine_back() {
    let allocator = allocator(1 << 20);
    let remote = allocator.clone();
    let park = move || {
        warm(&remote);
        remote.free_block(allocate(&remote, 256).0).unwrap();
        assert_eq!(occupied_blocks(&remote), 1);
    };
    thread::spawn(park).join().unwrap();
    assert_eq!(occupied_blocks(&allocator), 0);
    assert_eq!(allocator.shared().lock().unwrap().state().unwrap().magazines.len(), 1);
    assert_empty(&allocator);
    assert_eq!(allocator.shared().lock().unwrap().state().unwrap().magazines.len(), 0, "it is forgotten");
}

#[test]
fn a_thread_that_ends_does_not_wait_for_the_mutex() {
    let allocator = allocator(1 << 20);
    let (send, receive) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    let remote = allocator.clone();
    let other = thread::spawn(move || {
        warm(&remote);
        (0..2).map(|_| owned(&remote, 256)).collect::<Vec<_>>().clear();
        send.send(()).unwrap();
        let _ = wait.recv();
    });
    receive.recv().unwrap();
    allocator
        .while_locked(|| {
            drop(go_on);
            other.join().unwrap();
        })
        .unwrap();
    assert_eq!(occupied_blocks(&allocator), 0, "the unlock drained them");
    assert_empty(&allocator);
}

thread_local! {
    /// Dropped after this thread's magazines, if it was first used before them.
    static LATE: RefCell<Vec<CompositeAddress>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn a_free_after_the_magazines_are_gone_reaches_the_arena() {
    let allocator = allocator(1 << 20);
    let remote = allocator.clone();
    let free_late = move || {
        LATE.with_borrow_mut(|late| late.extend([owned(&remote, 256), owned(&remote, 256)]));
        warm(&remote);
        drop(owned(&remote, 256));
        assert_eq!(occupied_blocks(&remote), 3);
    };
    thread::spawn(free_late).join().unwrap();
    assert_eq!(occupied_blocks(&allocator), 0);
    assert_empty(&allocator);
}

#[test]
fn what_a_magazine_handed_out_is_freed_after_all_magazines_are_gone() {
    let allocator = allocator(1 << 20);
    let remote = allocator.clone();
    let reused = move || {
        warm(&remote);
        let first = allocate(&remote, 256).0;
        remote.free_block(first).unwrap();
        let second = allocate(&remote, 200).0;
        assert_ne!(first, second);
        second
    };
    let handle = thread::spawn(reused).join().unwrap();
    allocator.set_limit_bytes(Some(1 << 20)).unwrap();
    assert_eq!(allocator.shared().lock().unwrap().state().unwrap().magazines.len(), 0);
    assert_eq!(allocator.statistics().unwrap().requested_bytes.current, 200);
    allocator.free_block(handle).unwrap();
    assert_empty(&allocator);
}

#[test]
fn magazines_of_ended_threads_do_not_pile_up() {
    let allocator = allocator(1 << 20);
    for _ in 0..20 {
        let remote = allocator.clone();
        let park = move || {
            warm(&remote);
            drop(owned(&remote, 256));
        };
        thread::spawn(park).join().unwrap();
        let known = allocator.shared().lock().unwrap().state().unwrap().magazines.len();
        assert!(known <= 2, "{known}");
    }
    for _ in 0..20 {
        let remote = allocator.clone();
        thread::spawn(move || warm(&remote)).join().unwrap(); // It makes a magazine and never uses it.
        let known = allocator.shared().lock().unwrap().state().unwrap().magazines.len();
        assert!(known <= 2, "{known}");
    }
    assert_eq!(occupied_blocks(&allocator), 0);
    assert_empty(&allocator);
}

#[test]
fn more_than_a_batch_is_taken_back() {
    let allocator = allocator(1 << 30);
    warm(&allocator);
    let blocks: Vec<_> = (0..600).map(|k| owned(&allocator, 128 * (1 + k % 3))).collect();
    drop(blocks);
    assert!(occupied_blocks(&allocator) > 256);
    assert_empty(&allocator);
}

#[test]
fn an_allocator_may_end_before_its_threads() {
    let first = allocator(1 << 20);
    warm(&first);
    drop(owned(&first, 256));
    drop(first);
    let second = allocator(1 << 20);
    warm(&second);
    drop(owned(&second, 256));
    assert_eq!(occupied_blocks(&second), 1);
    assert_empty(&second);
}

/// An allocator whose racks hold 16 blocks of 256 bytes, and one more than that, to be dropped.
fn one_too_many() -> (FlexAllocator, Vec<CompositeAddress>) {
    let allocator = allocator(256 << 10);
    let blocks = (0..17).map(|_| owned(&allocator, 256)).collect();
    (allocator, blocks)
}

#[test]
fn a_full_rack_gives_half_of_it_back() {
    let (allocator, blocks) = one_too_many();
    warm(&allocator);
    drop(blocks);
    assert_eq!(occupied_blocks(&allocator), 9);
    assert_empty(&allocator);
}

#[test]
fn a_full_rack_gives_back_without_the_mutex() {
    let (allocator, blocks) = one_too_many();
    let (remote, done) = (allocator.clone(), Arc::new(Barrier::new(2)));
    let (ready, start) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (warmed, wait, freed) = (Arc::clone(&ready), Arc::clone(&start), Arc::clone(&done));
    let other = thread::spawn(move || {
        warm(&remote);
        warmed.wait();
        wait.wait();
        drop(blocks);
        freed.wait();
        // What is pending is settled after the mutex is given up, so one who locks in between still sees it.
        freed.wait();
        assert_eq!(occupied_blocks(&remote), 9, "the others were pending until the unlock");
    });
    ready.wait();
    // The other thread's frees would never end if they waited.
    allocator.while_locked(|| [start.wait(), done.wait()]).unwrap();
    done.wait();
    other.join().unwrap();
    assert_empty(&allocator);
}

#[test]
fn a_rack_holds_a_small_part_of_the_device() {
    let allocator = allocator(1 << 20);
    warm(&allocator);
    drop((0..4).map(|_| owned(&allocator, 64 * KIB)).collect::<Vec<_>>());
    assert_eq!(occupied_blocks(&allocator), 2, "but two blocks");
    assert_empty(&allocator);
}

/// An allocator with two domains of the same size.
fn with_two_domains(bytes: u64) -> FlexAllocator {
    let layout = |domain| RegionLayout {
        domain: DomainId(domain),
        memory_type: MemoryType::Tensor,
        size_bytes: bytes,
    };
    let topology = Topology::custom(vec![layout(0), layout(1)]).unwrap();
    FlexAllocator::new(Arc::new(AddressesOnly::default()), &topology, AllocatorOptions::default()).unwrap()
}

fn in_domains(domains: &[u32]) -> AllocationDirective {
    let domains = domains.iter().map(|&domain| DomainId(domain));
    AllocationDirective::builder().domains(domains).build().unwrap()
}

#[test]
fn classes_that_are_in_each_others_way_take_turns() {
    let allocator = with_two_domains(1 << 24);
    warm(&allocator);
    let of_domain = [in_domains(&[0]), in_domains(&[1])];
    let class = |domain: usize, units: u32| Class::new(of_domain[domain].lane(), units).unwrap();
    let first = 200_u32;
    let second = (1..=LARGEST_UNITS).find(|&units| class(1, units).rack() == class(0, first).rack()).unwrap();
    let owned = |domain: usize, units: u32| {
        allocator.allocate(u64::from(units) * ALIGNMENT_BYTES, &of_domain[domain]).unwrap()
    };
    let own = owned(0, first);
    let others: Vec<_> = (0..=PATIENCE + 1).map(|_| owned(1, second)).collect();
    drop(own);
    let left: Vec<usize> = others
        .into_iter()
        .map(|block| {
            drop(block);
            occupied_blocks(&allocator)
        })
        .collect();
    // One after the other goes to the arena, with the last but one the rack changes hands, and the last is parked too.
    let expected: Vec<usize> = (0..PATIENCE as usize).map(|freed| 10 - freed).chain([2, 2]).collect();
    assert_eq!(left, expected);
    assert_empty(&allocator);
}

#[test]
fn each_size_of_a_domain_has_a_rack_of_its_own() {
    let lane = AllocationDirective::default().lane();
    let racks: HashSet<_> =
        (1..=LARGEST_UNITS).map(|units| Class::new(lane, units).unwrap().rack()).collect();
    assert_eq!((racks.len(), racks.iter().max()), (RACKS, Some(&(RACKS - 1))));
}

#[test]
fn sizes_and_lanes_that_are_not_for_magazines() {
    let largest = u64::from(LARGEST_UNITS) * ALIGNMENT_BYTES;
    let tensors = |domain| Lane::of(DomainId(domain), MemoryType::Tensor);
    assert!(Class::wanted(largest, tensors(0)).is_some());
    assert_eq!(Class::wanted(largest + 1, tensors(0)), None);
    assert_eq!(Class::wanted(0, tensors(0)), None);
    assert_eq!(Class::wanted(128, Lane::of(DomainId(0), MemoryType::Program)), None);
    assert_eq!(Class::wanted(128, Lane::NONE), None);
    assert_ne!(Class::wanted(128, tensors(0)), Class::wanted(128, tensors(1)));
}

#[test]
fn a_request_for_any_of_several_domains_takes_what_is_parked_of_one() {
    let allocator = with_two_domains(1 << 20);
    warm(&allocator);
    let first = allocator.allocate_block(1000, &in_domains(&[1])).unwrap();
    allocator.free_block(first.0).unwrap();
    assert!(allocator.allocate_block(1000, &in_domains(&[0, 1, 2])).is_err(), "there is no domain 2");
    let second = allocator.allocate_block(1000, &in_domains(&[0, 1])).unwrap();
    assert_eq!(first.1, second.1);
    allocator.free_block(second.0).unwrap();
    assert_empty(&allocator);
}
