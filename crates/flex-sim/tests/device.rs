//! The simulated device through the trait the allocator uses.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use flex::{Device, DeviceError, DomainId, MemoryType, RegionId, Topology, VirtualAddress};
use flex_sim::{RegionIdScheme, SimulatedDevice, SimulatedOptions};

const MIB: u64 = 1 << 20;

fn device(capacity_bytes: u64) -> Arc<SimulatedDevice> {
    SimulatedDevice::new(SimulatedOptions { capacity_bytes, ..SimulatedOptions::default() }).unwrap()
}

fn acquire(device: &SimulatedDevice, size_bytes: u64) -> Result<RegionId, DeviceError> {
    device.acquire_region(size_bytes, DomainId(0), MemoryType::Tensor)
}

fn at(region_id: RegionId, offset_bytes: u64) -> VirtualAddress {
    VirtualAddress { region_id, offset_bytes }
}

/// Resident bytes of the whole process.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kibibytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kibibytes * 1024
}

#[test]
fn the_capacity_is_hard_and_given_back() {
    let device = device(10 * MIB);
    let first = acquire(&device, 6 * MIB).unwrap();
    assert_eq!(
        acquire(&device, 5 * MIB),
        Err(DeviceError::CapacityExceeded {
            requested_bytes: 5 * MIB,
            acquired_bytes: 6 * MIB,
            capacity_bytes: 10 * MIB
        })
    );
    acquire(&device, 4 * MIB).unwrap();
    assert_eq!(device.acquired_bytes(), 10 * MIB);
    device.release_region(first).unwrap();
    acquire(&device, 5 * MIB).unwrap();
    assert_eq!(device.release_region(first), Err(DeviceError::UnknownRegion { region_id: first }));
}

#[test]
fn sizes_are_checked() {
    let device = device(MIB);
    for size_bytes in [0, 1, 127, 4095] {
        assert!(matches!(acquire(&device, size_bytes), Err(DeviceError::InvalidSize { .. })));
    }
    assert!(matches!(
        SimulatedDevice::new(SimulatedOptions { capacity_bytes: 127, ..SimulatedOptions::default() }),
        Err(DeviceError::InvalidSize { size_bytes: 127, .. })
    ));
    assert_eq!(device.acquired_bytes(), 0);
}

#[test]
fn a_region_the_host_cannot_map_leaves_no_claim() {
    let device = device(u64::MAX);
    match acquire(&device, 1 << 62) {
        Err(error @ DeviceError::Os { size_bytes, errno, .. }) => {
            assert_eq!((size_bytes, errno), (1 << 62, 12));
            assert!(error.to_string().contains("4611686018427387904 bytes failed with errno 12"), "{error}");
        }
        other => panic!("expected a system error, got {other:?}"),
    }
    assert_eq!(device.acquired_bytes(), 0);
}

#[test]
fn a_device_for_a_topology_holds_all_its_regions() {
    let topology = Topology::spyre(118_111_600_635, 7, 1).unwrap();
    let device = SimulatedDevice::for_topology(&topology).unwrap();
    for region in topology.regions() {
        device.acquire_region(region.usable_bytes(), region.domain, region.memory_type).unwrap();
    }
    assert_eq!(device.acquired_bytes(), device.capacity_bytes());
    assert!(acquire(&device, 128).is_err());
}

#[test]
fn regions_are_named_by_address_or_by_lowest_index() {
    let device = device(MIB);
    let region_id = acquire(&device, MIB).unwrap();
    assert_eq!(device.host_address(at(region_id, 0)), Some(region_id.0 as usize));

    let region_ids = RegionIdScheme::Index;
    let device =
        SimulatedDevice::new(SimulatedOptions { region_ids, ..SimulatedOptions::default() }).unwrap();
    let ids: Vec<u64> = (0..3).map(|_| acquire(&device, MIB).unwrap().0).collect();
    assert_eq!(ids, [0, 1, 2]);
    device.release_region(RegionId(1)).unwrap();
    assert_eq!(acquire(&device, MIB).unwrap(), RegionId(1));
    assert_eq!(acquire(&device, MIB).unwrap(), RegionId(3));
}

#[test]
fn copies_and_fills_stay_within_their_region() {
    let device = device(2 * MIB);
    let region_id = acquire(&device, MIB).unwrap();
    device.copy_in(at(region_id, MIB - 4), b"last").unwrap();
    let mut bytes = [0; 4];
    device.copy_out(at(region_id, MIB - 4), &mut bytes).unwrap();
    assert_eq!(&bytes, b"last");
    device.fill(at(region_id, MIB - 2), 2, b'!').unwrap();
    device.copy_out(at(region_id, MIB - 4), &mut bytes).unwrap();
    assert_eq!(&bytes, b"la!!");

    let beyond = |offset_bytes, len_bytes| DeviceError::OutOfBounds {
        region_id,
        offset_bytes,
        len_bytes,
        region_bytes: MIB,
    };
    assert_eq!(device.copy_in(at(region_id, MIB - 3), b"last"), Err(beyond(MIB - 3, 4)));
    assert_eq!(device.copy_out(at(region_id, MIB), &mut bytes), Err(beyond(MIB, 4)));
    assert_eq!(device.fill(at(region_id, u64::MAX), 2, 0), Err(beyond(u64::MAX, 2)));
    assert_eq!(device.host_address(at(region_id, MIB)), None);
    let unknown = RegionId(u64::MAX);
    assert_eq!(device.fill(at(unknown, 0), 1, 0), Err(DeviceError::UnknownRegion { region_id: unknown }));
    device.copy_in(at(region_id, MIB), b"").unwrap();
}

#[test]
fn pages_are_committed_on_touch_and_given_back_by_trim_and_release() {
    let device = device(64 << 30);
    let region_id = acquire(&device, 64 << 30).unwrap();
    assert_eq!(device.committed_bytes(), 0);
    let before = resident_bytes();
    // Half a gibibyte would show over anything the other tests do meanwhile.
    device.fill(at(region_id, 32 << 30), 512 * MIB, 1).unwrap();
    assert!(device.committed_bytes() >= 512 * MIB);
    assert!(device.committed_bytes() <= 516 * MIB, "huge pages at both ends at most");
    assert!(resident_bytes() >= before + 500 * MIB);
    device.trim(region_id, 32 << 30, 512 * MIB);
    assert!(device.committed_bytes() <= 4 * MIB);
    assert!(resident_bytes() < before + 100 * MIB);
    assert_eq!(device.injection().calls().trim, 1);
    let mut byte = [9];
    device.copy_out(at(region_id, 32 << 30), &mut byte).unwrap();
    assert_eq!(byte, [0]);
    device.fill(at(region_id, 0), 256 * MIB, 1).unwrap();
    device.release_region(region_id).unwrap();
    assert_eq!(device.committed_bytes(), 0);
    assert!(resident_bytes() < before + 100 * MIB);
    device.trim(region_id, 0, 1);
}

#[test]
fn devices_are_apart() {
    let (first, second) = (device(MIB), device(MIB));
    let region_id = acquire(&first, MIB).unwrap();
    assert_eq!(second.host_address(at(region_id, 0)), None);
    assert_eq!(second.acquired_bytes(), 0);
    acquire(&second, MIB).unwrap();
}

#[test]
fn the_chosen_acquisition_fails() {
    let device = device(10 * MIB);
    acquire(&device, MIB).unwrap();
    device.injection().fail_nth_acquire(2);
    acquire(&device, MIB).unwrap();
    assert_eq!(acquire(&device, MIB), Err(DeviceError::Injected { operation: "acquire_region", nth: 3 }));
    acquire(&device, MIB).unwrap();
    device.injection().fail_every_acquire(true);
    assert!(acquire(&device, MIB).is_err());
    assert!(acquire(&device, MIB).is_err());
    device.injection().fail_every_acquire(false);
    acquire(&device, MIB).unwrap();
    let calls = device.injection().calls();
    assert_eq!((calls.acquire, calls.acquire_failed), (7, 3));
    assert_eq!(device.acquired_bytes(), 4 * MIB);
}

#[test]
fn a_failed_release_keeps_the_region() {
    let device = device(MIB);
    let region_id = acquire(&device, MIB).unwrap();
    device.injection().fail_release(1);
    assert_eq!(
        device.release_region(region_id),
        Err(DeviceError::Injected { operation: "release_region", nth: 1 })
    );
    device.fill(at(region_id, 0), 1, 1).unwrap();
    device.release_region(region_id).unwrap();
    let calls = device.injection().calls();
    assert_eq!((calls.release, calls.release_failed), (2, 1));
}

#[test]
fn a_device_may_keep_its_regions() {
    let can_release_regions = false;
    let options = SimulatedOptions { can_release_regions, ..SimulatedOptions::default() };
    let device = SimulatedDevice::new(options).unwrap();
    let region_id = acquire(&device, MIB).unwrap();
    assert!(!device.can_release_regions());
    assert!(matches!(device.release_region(region_id), Err(DeviceError::Failed { .. })));
    device.fill(at(region_id, 0), 1, 1).unwrap();
}

#[test]
fn a_slow_acquisition_holds_up_no_one_else() {
    let device = device(10 * MIB);
    let region_id = acquire(&device, MIB).unwrap();
    let (entered, wait_entered) = mpsc::channel();
    let (go, wait_go) = mpsc::channel::<()>();
    let wait_go = Mutex::new(wait_go);
    device.injection().slow_acquire(move || {
        entered.send(()).unwrap();
        wait_go.lock().unwrap().recv().unwrap();
    });
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| acquire(&device, MIB));
        wait_entered.recv().unwrap();
        device.injection().clear_slow_acquire();
        acquire(&device, MIB).unwrap();
        device.fill(at(region_id, 0), 1, 1).unwrap();
        device.release_region(region_id).unwrap();
        go.send(()).unwrap();
        slow.join().unwrap().unwrap();
    });
    assert_eq!(device.acquired_bytes(), 2 * MIB);
}
