//! Helpers of the integration tests: allocators on simulated devices, a watchdog, and what every test ends with.

// Each test target uses a part of it.
#![allow(dead_code, unreachable_pub)]

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use flex::pressure::{PressureRequest, SharedCallback, Verdict};
use flex::{
    AllocationDirective, AllocatorGuard, AllocatorOptions, CompositeAddress, DomainId, FlexAllocator,
    FlexError, MemoryType, OutOfMemory, PlacementPolicy, RegionLayout, Topology,
};
use flex_sim::SimulatedDevice;

pub const KIB: u64 = 1 << 10;

/// An allocator with one tensor region.
pub fn allocator(bytes: u64) -> FlexAllocator {
    on_device(&Topology::uniform(bytes).unwrap()).0
}

/// An allocator and its device.
pub fn on_device(topology: &Topology) -> (FlexAllocator, Arc<SimulatedDevice>) {
    let device = SimulatedDevice::for_topology(topology).unwrap();
    let allocator = FlexAllocator::new(device.clone(), topology, AllocatorOptions::default()).unwrap();
    (allocator, device)
}

/// Tensor regions, as pairs of domain and size.
pub fn tensor_regions(regions: &[(u32, u64)]) -> Topology {
    let layout = |&(domain, size_bytes)| RegionLayout {
        domain: DomainId(domain),
        memory_type: MemoryType::Tensor,
        size_bytes,
    };
    Topology::custom(regions.iter().map(layout).collect()).unwrap()
}

pub fn bound(domain: u32) -> AllocationDirective {
    AllocationDirective::builder().domains([DomainId(domain)]).build().unwrap()
}

pub fn interleaved(domains: &[u32]) -> AllocationDirective {
    let domains = domains.iter().copied().map(DomainId);
    AllocationDirective::builder().policy(PlacementPolicy::Interleave).domains(domains).build().unwrap()
}

/// Allocates in the default domain.
pub fn allocate(allocator: &FlexAllocator, bytes: u64) -> Result<CompositeAddress, FlexError> {
    allocator.allocate(bytes, &AllocationDirective::default())
}

pub fn allocate_many(allocator: &FlexAllocator, count: usize, bytes: u64) -> Vec<CompositeAddress> {
    (0..count).map(|_| allocate(allocator, bytes).unwrap()).collect()
}

/// A closure as a callback.
pub fn callback(
    act: impl Fn(&mut AllocatorGuard<'_>, &mut PressureRequest) -> Verdict + Send + Sync + 'static,
) -> SharedCallback {
    Arc::new(act)
}

/// Sets a closure as the callback of an allocator.
pub fn set_callback(
    allocator: &FlexAllocator,
    act: impl Fn(&mut AllocatorGuard<'_>, &mut PressureRequest) -> Verdict + Send + Sync + 'static,
) {
    allocator.set_memory_pressure_callback(Some(callback(act))).unwrap();
}

/// Allocations that a callback may free.
#[derive(Clone, Default)]
pub struct Hoard(Arc<Mutex<Vec<CompositeAddress>>>);

impl Hoard {
    pub fn of(allocations: Vec<CompositeAddress>) -> Self {
        Hoard(Arc::new(Mutex::new(allocations)))
    }

    /// Frees the newest one.
    pub fn free_one(&self) {
        let newest = self.0.lock().unwrap().pop();
        drop(newest);
    }

    pub fn take(&self) -> Vec<CompositeAddress> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[track_caller]
pub fn expect_out_of_memory(result: Result<CompositeAddress, FlexError>) -> OutOfMemory {
    match result {
        Err(FlexError::OutOfMemory(report)) => *report,
        other => panic!("expected out of memory, got {other:?}"),
    }
}

/// Checks that so many bytes are allocated, that the allocator works, and that every event has ended.
#[track_caller]
pub fn check(allocator: &FlexAllocator, allocated_bytes: u64) {
    allocator.validate().unwrap();
    let statistics = allocator.statistics().unwrap();
    assert_eq!(statistics.allocated_bytes.current, allocated_bytes);
    let pressure = allocator.pressure_statistics();
    assert_eq!(pressure.events, pressure.rescued + pressure.failed, "{pressure:?}");
    assert!(pressure.coalesced <= pressure.rescued, "{pressure:?}");
    if statistics.free_bytes >= 128 {
        drop(allocate(allocator, 128).unwrap());
    }
}

/// How long a test waits for another thread before it gives up: far more than anything takes. The mutants, which often
/// make tests wait in vain, shorten it.
pub fn patience() -> Duration {
    let given = std::env::var("FLEX_TEST_PATIENCE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(given.unwrap_or(40))
}

/// Waits for an event of another thread.
#[track_caller]
pub fn wait<T>(events: &mpsc::Receiver<T>) -> T {
    events.recv_timeout(patience()).expect("an event of another thread")
}

/// Ends the test process, with the names of its threads, unless dropped within a minute.
pub struct Watchdog(#[allow(dead_code)] mpsc::Sender<()>);

#[must_use]
pub fn watchdog() -> Watchdog {
    let (alive, done) = mpsc::channel();
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    std::thread::spawn(move || {
        if done.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{name} has hung; the threads are: {}", thread_names().join(", "));
            std::process::abort();
        }
    });
    Watchdog(alive)
}

fn thread_names() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
        .map(|name| name.trim().to_owned())
        .collect()
}
