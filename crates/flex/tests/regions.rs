//! Regions and the device: refused, slow, wanted by two threads, and a device that panics.

#[path = "common/support.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use flex::pressure::Verdict;
use flex::{
    AllocatorOptions, Device, DeviceError, DomainId, FlexAllocator, FlexError, MemoryType, RegionId,
    RegionSetupError, VirtualAddress,
};
use flex_sim::SimulatedDevice;
use support::*;

/// Makes acquisitions wait: the first one tells that it has begun and ends when told to.
fn pause_acquire(device: &SimulatedDevice) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (begun, wait_begun) = mpsc::channel();
    let (go_on, wait_to_go_on) = mpsc::channel::<()>();
    let wait_to_go_on = Mutex::new(wait_to_go_on);
    device.injection().slow_acquire(move || {
        begun.send(()).unwrap();
        wait(&wait_to_go_on.lock().unwrap());
    });
    (wait_begun, go_on)
}

#[test]
fn a_refused_region_is_passed_over() {
    let (allocator, device) = on_device(&tensor_regions(&[(0, 4 * KIB), (0, 4 * KIB)]));
    device.injection().fail_nth_acquire(1);
    let first = allocate(&allocator, KIB).unwrap();
    assert_eq!(device.injection().calls().acquire, 2);
    assert_eq!(allocator.pressure_statistics().events, 0);
    // The next request asks for it again.
    let _second = allocate(&allocator, 4 * KIB).unwrap();
    assert_eq!(device.injection().calls().acquire, 3);
    drop(first);
    check(&allocator, 4 * KIB);
}

#[test]
fn refusing_every_region_is_not_called_out_of_memory() {
    let (allocator, device) = on_device(&tensor_regions(&[(0, 4 * KIB), (0, 4 * KIB)]));
    let calls = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&calls);
    set_callback(&allocator, move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
        Verdict::Retry
    });
    device.injection().fail_every_acquire(true);
    let error = allocate(&allocator, KIB).unwrap_err();
    let refused = matches!(error, FlexError::RegionSetup(RegionSetupError::Refused { size_bytes: 4096, .. }));
    assert!(refused, "{error}");
    assert_eq!(device.injection().calls().acquire, 2, "each region once, however often it searches");
    assert!(calls.load(Ordering::Relaxed) > 0);
    device.injection().fail_every_acquire(false);
    drop(allocate(&allocator, KIB).unwrap());
    check(&allocator, 0);
}

#[test]
fn the_mutex_is_free_while_the_device_is_slow() {
    let _watchdog = watchdog();
    let (allocator, device) = on_device(&tensor_regions(&[(0, 4 * KIB), (1, 4 * KIB)]));
    let (begun, go_on) = pause_acquire(&device);
    thread::scope(|scope| {
        let slow = scope.spawn(|| allocate(&allocator, KIB).unwrap());
        wait(&begun);
        device.injection().clear_slow_acquire();
        assert_eq!(allocator.statistics().unwrap().segment.current, 0);
        let other = allocator.allocate(KIB, &bound(1)).unwrap();
        assert_eq!(other.chunks().next().unwrap().domain, DomainId(1));
        allocator.validate().unwrap();
        go_on.send(()).unwrap();
        drop(slow.join().unwrap());
    });
    check(&allocator, 0);
}

#[test]
fn two_threads_share_the_region_that_one_acquires() {
    let _watchdog = watchdog();
    let (allocator, device) = on_device(&tensor_regions(&[(0, 4 * KIB)]));
    let (begun, go_on) = pause_acquire(&device);
    thread::scope(|scope| {
        let first = scope.spawn(|| allocate(&allocator, KIB).unwrap());
        wait(&begun);
        let (about_to, wait_about_to) = mpsc::channel();
        let allocator = &allocator;
        let second = scope.spawn(move || {
            about_to.send(()).unwrap();
            allocate(allocator, KIB).unwrap()
        });
        wait(&wait_about_to);
        go_on.send(()).unwrap();
        drop((first.join().unwrap(), second.join().unwrap()));
    });
    assert_eq!(device.injection().calls().acquire, 1);
    assert_eq!(allocator.pressure_statistics().events, 0);
    check(&allocator, 0);
}

#[test]
fn who_waits_for_a_region_that_is_refused_asks_for_it_itself() {
    let _watchdog = watchdog();
    let (allocator, device) = on_device(&tensor_regions(&[(0, 4 * KIB)]));
    device.injection().fail_nth_acquire(1);
    let (begun, go_on) = pause_acquire(&device);
    thread::scope(|scope| {
        let first = scope.spawn(|| allocate(&allocator, KIB).map(drop));
        wait(&begun);
        let second = scope.spawn(|| allocate(&allocator, KIB).map(drop));
        go_on.send(()).unwrap();
        // The first does not ask again; the second is the only one that gets this far.
        wait(&begun);
        go_on.send(()).unwrap();
        second.join().unwrap().unwrap();
        // What the first says depends on whether it looked once more before or after the region came.
        if let Err(error) = first.join().unwrap() {
            assert!(matches!(error, FlexError::RegionSetup(RegionSetupError::Refused { .. })), "{error}");
        }
    });
    assert_eq!(device.injection().calls().acquire, 2);
    check(&allocator, 0);
}

/// A device whose next call panics, or whose next fill fails, when told to.
#[derive(Debug)]
struct Fragile {
    inner: Arc<SimulatedDevice>,
    panics: AtomicBool,
    fails_to_fill: AtomicBool,
}

impl Fragile {
    fn maybe_panic(&self) {
        if self.panics.swap(false, Ordering::SeqCst) {
            panic!("the device panics");
        }
    }
}

impl Device for Fragile {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_bytes()
    }
    fn acquire_region(
        &self,
        bytes: u64,
        domain: DomainId,
        kind: MemoryType,
    ) -> Result<RegionId, DeviceError> {
        self.maybe_panic();
        self.inner.acquire_region(bytes, domain, kind)
    }
    fn release_region(&self, region_id: RegionId) -> Result<(), DeviceError> {
        self.maybe_panic();
        self.inner.release_region(region_id)
    }
    fn can_release_regions(&self) -> bool {
        self.inner.can_release_regions()
    }
    fn trim(&self, _region_id: RegionId, _offset_bytes: u64, _len_bytes: u64) {
        self.maybe_panic();
    }
    fn copy_in(&self, to: VirtualAddress, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.copy_in(to, bytes)
    }
    fn copy_out(&self, from: VirtualAddress, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.copy_out(from, bytes)
    }
    fn fill(&self, at: VirtualAddress, len_bytes: u64, byte: u8) -> Result<(), DeviceError> {
        if self.fails_to_fill.swap(false, Ordering::SeqCst) {
            return Err(DeviceError::Failed { operation: "fill", code: 5, message: "told to".into() });
        }
        self.inner.fill(at, len_bytes, byte)
    }
}

/// Three regions on a device that can panic.
fn fragile() -> (FlexAllocator, Arc<Fragile>) {
    fragile_with(AllocatorOptions::default())
}

fn fragile_with(options: AllocatorOptions) -> (FlexAllocator, Arc<Fragile>) {
    let topology = tensor_regions(&[(0, 8 * KIB), (0, 8 * KIB), (0, 8 * KIB)]);
    let inner = SimulatedDevice::for_topology(&topology).unwrap();
    let device =
        Arc::new(Fragile { inner, panics: AtomicBool::default(), fails_to_fill: AtomicBool::default() });
    let allocator = FlexAllocator::new(device.clone(), &topology, options).unwrap();
    (allocator, device)
}

#[test]
fn a_panic_while_a_region_is_acquired_leaves_it_to_the_next_request() {
    let (allocator, device) = fragile();
    device.panics.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| allocate(&allocator, KIB))).is_err());
    drop(allocate_many(&allocator, 3, 8 * KIB));
    check(&allocator, 0);
}

#[test]
fn a_panic_while_regions_are_returned_leaves_all_of_them_in_use() {
    let (allocator, device) = fragile();
    drop(allocate_many(&allocator, 3, 8 * KIB));
    device.panics.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| allocator.empty_cache())).is_err());
    assert_eq!(allocator.statistics().unwrap().segment.current, 3);
    drop(allocate_many(&allocator, 3, 8 * KIB));
    check(&allocator, 0);
    assert_eq!(allocator.empty_cache().unwrap(), 24 * KIB);
    assert_eq!(device.inner.acquired_bytes(), 0);
}

#[test]
fn a_refused_return_is_an_error_and_the_others_leave() {
    let (allocator, device) = on_device(&tensor_regions(&[(0, 8 * KIB), (0, 8 * KIB)]));
    drop(allocate_many(&allocator, 2, 8 * KIB));
    device.injection().fail_release(1);
    assert!(matches!(allocator.empty_cache(), Err(FlexError::Device(DeviceError::Injected { .. }))));
    assert_eq!(allocator.statistics().unwrap().segment.current, 1);
    drop(allocate_many(&allocator, 2, 8 * KIB));
    check(&allocator, 0);
}

#[test]
fn fresh_blocks_that_cannot_be_poisoned_are_free_again() {
    let (allocator, device) = fragile_with(AllocatorOptions { poison: true, ..AllocatorOptions::default() });
    device.fails_to_fill.store(true, Ordering::SeqCst);
    let error = allocate(&allocator, KIB).unwrap_err();
    assert_eq!(error.to_string(), "device: fill failed with code 5: told to");
    check(&allocator, 0);
}

#[test]
fn a_panic_while_pages_are_dropped_returns_the_held_blocks() {
    let (allocator, device) = fragile();
    let blocks = allocate_many(&allocator, 3, 4 * KIB);
    device.panics.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| allocator.empty_cache())).is_err());
    allocator.validate().unwrap();
    drop(blocks);
    drop(allocate_many(&allocator, 3, 8 * KIB));
    check(&allocator, 0);
}
