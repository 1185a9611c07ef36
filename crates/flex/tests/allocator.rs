//! The allocator through its public interface: random runs against the naive model, threads at once, and the
//! hardware's own case.

mod common;
#[path = "common/driver.rs"]
mod driver;
#[path = "common/support.rs"]
mod support;

#[path = "allocator/random.rs"]
mod random;
#[path = "allocator/stress.rs"]
mod stress;

use flex::{
    AllocationDirective, AllocatorOptions, FlexAllocator, FlexError, MemoryType, PlacementError, Topology,
};
use flex_sim::SimulatedDevice;
use support::*;

const GIB: u64 = 1 << 30;

#[test]
fn the_hardware_case_ends_with_the_right_report() {
    let (allocator, device) = on_device(&Topology::spyre(118_111_600_635, 7, 1).unwrap());
    let mut live = allocate_many(&allocator, 42, 2 * GIB);
    let report = expect_out_of_memory(allocate(&allocator, 2 * GIB));
    assert_eq!(
        report.to_string(),
        "out of memory: 2147483648 bytes of tensor memory requested in domain(s) 0; \
         11044200960 of 101238514176 bytes are free, the largest free block has 1840700160"
    );
    assert_eq!((report.free_bytes, report.largest_free_bytes), (11_044_200_960, 1_840_700_160));
    assert_eq!((report.capacity_bytes, report.largest_region_bytes), (6 * 16_873_085_696, 16_873_085_696));
    assert!(report.possible);
    assert_eq!(device.committed_bytes(), 0, "the allocator touches no device memory");
    live.pop();
    live.push(allocate(&allocator, 2 * GIB).unwrap());
    drop(live);
    check(&allocator, 0);
    assert_eq!(allocator.empty_cache().unwrap(), 6 * 16_873_085_696);
    assert_eq!(device.acquired_bytes(), 0);
}

#[test]
fn a_tensor_may_use_all_of_a_simulated_device() {
    let allocator = allocator(GIB + 127);
    drop(allocate(&allocator, GIB).unwrap());
    let programs = AllocationDirective::builder()
        .domains([flex::DomainId(0)])
        .memory_type(MemoryType::Program)
        .build()
        .unwrap();
    drop(allocator.allocate(64 << 20, &programs).unwrap());
    check(&allocator, 0);
}

#[test]
fn an_allocation_near_another_uses_its_domains_while_it_lives() {
    let (allocator, _device) = on_device(&tensor_regions(&[(0, 4 * KIB), (1, 4 * KIB)]));
    let first = allocator.allocate(128, &bound(1)).unwrap();
    let near = first.reference();
    let beside = || AllocationDirective::builder().near(near.domains(), near.is_live()).build();
    let second = allocator.allocate(128, &beside().unwrap()).unwrap();
    assert_eq!(second.chunks().next().unwrap().domain, flex::DomainId(1));
    drop(first);
    assert_eq!(beside().unwrap_err(), FlexError::InvalidPlacement(PlacementError::NearNotLive));
}

#[test]
fn one_block_cannot_be_interleaved() {
    let (allocator, _device) = on_device(&tensor_regions(&[(0, 4 * KIB), (1, 4 * KIB)]));
    let error = allocator.allocate_block(128, &interleaved(&[0, 1])).unwrap_err();
    assert_eq!(error, FlexError::InvalidPlacement(PlacementError::NotContiguous { domain_count: 2 }));
    let both = allocator.allocate(128, &interleaved(&[0, 1])).unwrap();
    assert!(both.host_address().is_none());
    let both = both.into_block().unwrap_err();
    both.free().unwrap();
    check(&allocator, 0);
}

#[test]
fn a_block_freed_behind_its_owners_back_is_an_error_of_the_owner() {
    let allocator = allocator(4 * KIB);
    let (handle, _) = allocator.allocate_block(128, &AllocationDirective::default()).unwrap();
    allocator.free_block(handle).unwrap();
    let error = allocator.free_block(handle).unwrap_err();
    assert!(matches!(error, FlexError::UnknownAllocation { .. }), "{error}");
    assert_eq!(allocator.block(handle).unwrap(), None);
    check(&allocator, 0);
}

#[test]
fn poison_marks_fresh_and_freed_blocks() {
    let topology = Topology::uniform(4 * KIB).unwrap();
    let device = SimulatedDevice::for_topology(&topology).unwrap();
    let options = AllocatorOptions { poison: true, ..AllocatorOptions::default() };
    let allocator = FlexAllocator::new(device.clone(), &topology, options).unwrap();
    let content = |address| {
        let mut bytes = [0_u8; 256];
        flex::Device::copy_out(&*device, address, &mut bytes).unwrap();
        bytes
    };
    let block = allocate(&allocator, 200).unwrap();
    let address = block.chunks().next().unwrap().address;
    assert!(allocator.holds_host_address(block.host_address().unwrap()));
    assert!(!allocator.holds_host_address(0));
    assert_eq!(content(address), [0xcd; 256]);
    drop(block);
    assert_eq!(content(address), [0xdd; 256]);
    let (handle, _) = allocator.allocate_block(200, &AllocationDirective::default()).unwrap();
    allocator.free_block(handle).unwrap();
    assert!(allocator.free_block(handle).is_err());
    check(&allocator, 0);
}

/// While the mutex is taken, frees go through the pending list; each block is freed once all the same.
#[test]
fn stale_handles_are_found_out_at_once_also_while_the_mutex_is_taken() {
    let allocator = allocator(4096);
    let directive = AllocationDirective::default();
    let (first, _) = allocator.allocate_block(128, &directive).unwrap();
    let refused = |result| assert!(matches!(result, Err(FlexError::UnknownAllocation { .. })), "{result:?}");
    allocator
        .while_locked(|| {
            allocator.free_block(first).unwrap();
            refused(allocator.free_block(first));
        })
        .unwrap();
    check(&allocator, 0);
    let (second, _) = allocator.allocate_block(128, &directive).unwrap();
    assert_eq!(first.to_raw() as u32, second.to_raw() as u32, "the same index, another generation");
    allocator
        .while_locked(|| {
            refused(allocator.free_block(first));
            allocator.free_block(second).unwrap();
            refused(allocator.free_block(second));
        })
        .unwrap();
    check(&allocator, 0);
    refused(allocator.free_block(second));
}
