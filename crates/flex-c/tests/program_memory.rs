//! Program memory through the C ABI, from native threads, with no interpreter anywhere: a calibrator of the device's
//! clock that runs while a process is being set up, and threads that build job plans.
//!
//! Each test ends in counted figures. A test that hangs is ended by an alarm.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Instant;

use flex_c::*;
use flex_sim::clock::{ClockMapping, Sample, SimulatedClock};

const TENSOR_BYTES: u64 = 1 << 20;
/// What `flex_allocator_create_uniform` puts beside it.
const PROGRAM_BYTES: u64 = TENSOR_BYTES / 16;

fn watchdog() {
    // SAFETY: the default action of the signal ends the process; each test starts the time again.
    unsafe { libc::alarm(60) };
}

fn allocator() -> FlexAllocator {
    let mut allocator = FlexAllocator { id: 0 };
    // SAFETY: default options, and a place for the result.
    let status = unsafe { flex_allocator_create_uniform(TENSOR_BYTES, null(), &mut allocator) };
    assert_eq!(status, FlexStatus::FLEX_OK);
    allocator
}

fn allocate_program(allocator: FlexAllocator, bytes: u64) -> Result<FlexAllocation, FlexStatus> {
    let domain = 0;
    let directive = FlexDirective {
        policy: FLEX_BIND,
        memory_type: FLEX_PROGRAM,
        domains: &domain,
        domain_count: 1,
        near: FlexAllocation { id: 0 },
    };
    let mut allocation = FlexAllocation { id: 0 };
    // SAFETY: a directive with one domain, and a place for the result.
    match unsafe { flex_allocate(allocator, bytes, &directive, &mut allocation) } {
        FlexStatus::FLEX_OK => Ok(allocation),
        failed => Err(failed),
    }
}

fn host_address(allocation: FlexAllocation) -> *mut c_void {
    let mut address = null_mut();
    // SAFETY: a place for the result.
    assert_eq!(unsafe { flex_host_address(allocation, 0, &mut address) }, FlexStatus::FLEX_OK);
    address
}

fn statistics(allocator: FlexAllocator) -> (FlexStatistics, FlexPressureStatistics) {
    let (mut statistics, mut pressure) = (FlexStatistics::default(), FlexPressureStatistics::default());
    // SAFETY: places for the results.
    unsafe {
        assert_eq!(flex_statistics(allocator, &mut statistics), FlexStatus::FLEX_OK);
        assert_eq!(flex_pressure_statistics(allocator, &mut pressure), FlexStatus::FLEX_OK);
    }
    (statistics, pressure)
}

/// Maps device ticks to host time. Its scratch is program memory that the device writes its ticks to.
struct TimestampCalibrator {
    scratch: FlexAllocation,
    clock: SimulatedClock,
}

impl TimestampCalibrator {
    fn new(allocator: FlexAllocator, clock: SimulatedClock) -> Result<Self, FlexStatus> {
        Ok(TimestampCalibrator { scratch: allocate_program(allocator, size_of::<u64>() as u64)?, clock })
    }

    /// Has the device note its ticks between two readings of the host's clock.
    fn sample(&self, host_ns: &impl Fn() -> u64) -> Sample {
        let scratch = host_address(self.scratch).cast::<u64>();
        let before_ns = host_ns();
        // SAFETY: this calibrator's own memory, aligned to 128 and large enough. The device writes it when asked to,
        // and the host reads it afterwards.
        let ticks = unsafe {
            scratch.write_volatile(self.clock.ticks_at(host_ns()));
            scratch.read_volatile()
        };
        Sample { before_ns, ticks, after_ns: host_ns() }
    }

    fn calibrate(&self, host_ns: impl Fn() -> u64, samples: usize) -> ClockMapping {
        let samples: Vec<Sample> = (0..samples).map(|_| self.sample(&host_ns)).collect();
        ClockMapping::fit(&samples).expect("both clocks run")
    }
}

impl Drop for TimestampCalibrator {
    fn drop(&mut self) {
        assert_eq!(flex_free(self.scratch), FlexStatus::FLEX_OK);
    }
}

/// Programs that a callback may throw out, oldest first.
#[derive(Default)]
struct ProgramCache(Mutex<Vec<FlexAllocation>>);

impl ProgramCache {
    fn put(&self, program: FlexAllocation) {
        self.0.lock().unwrap().push(program);
    }

    fn throw_out_one(&self) -> bool {
        let mut programs = self.0.lock().unwrap();
        let oldest = (!programs.is_empty()).then(|| programs.remove(0));
        drop(programs);
        oldest.is_some_and(|program| flex_free(program) == FlexStatus::FLEX_OK)
    }

    fn clear(&self) {
        while self.throw_out_one() {}
    }

    /// Has it throw out a program whenever memory is short.
    fn serve(self: &Arc<Self>, allocator: FlexAllocator) {
        let arg = Arc::into_raw(Arc::clone(self)).cast_mut().cast();
        // SAFETY: the functions below take a cache; it lives until the last one is called.
        let status = unsafe {
            flex_set_pressure_callback(allocator, Some(on_pressure), arg, Some(end_cache), null_mut())
        };
        assert_eq!(status, FlexStatus::FLEX_OK);
    }
}

unsafe extern "C-unwind" fn on_pressure(
    lock: *mut FlexLock,
    _: *const FlexPressureRequest,
    cache: *mut c_void,
) -> FlexVerdict {
    // SAFETY: the lock of this call, and the cache that goes with this function. Registered, this request gets what it
    // frees, unless an older one is waiting.
    let acted = unsafe { [flex_lock_register(lock), flex_unlocked(lock, Some(throw_out_one), cache)] };
    if acted == [FlexStatus::FLEX_OK; 2] { FLEX_RETRY } else { FLEX_FAIL }
}

unsafe extern "C-unwind" fn throw_out_one(cache: *mut c_void) {
    // SAFETY: the cache that goes with this function.
    unsafe { &*cache.cast::<ProgramCache>() }.throw_out_one();
}

unsafe extern "C-unwind" fn end_cache(cache: *mut c_void) {
    // SAFETY: made by `into_raw`; nothing uses it any more.
    drop(unsafe { Arc::from_raw(cache.cast::<ProgramCache>()) });
}

#[test]
fn a_calibrator_runs_on_a_native_thread_before_there_is_an_interpreter() {
    watchdog();
    let allocator = allocator();
    let clock = SimulatedClock::new(19_200_000, 1 << 40);
    let epoch = Instant::now();
    let host_ns = move || u64::try_from(epoch.elapsed().as_nanos()).unwrap();
    let set_up = thread::spawn(move || {
        let calibrator = TimestampCalibrator::new(allocator, clock)?;
        let in_use = statistics(allocator).0;
        assert_eq!(in_use.program.allocated_bytes.current, 128);
        assert_eq!(in_use.allocated_bytes.current, 0, "no tensor memory");
        Ok::<_, FlexStatus>(calibrator.calibrate(host_ns, 1000))
    });
    let mapping = set_up.join().unwrap().unwrap();
    let mut last_ns = 0;
    for host_ns in (0..2_000_000_000).step_by(9_999_991) {
        let ticks = clock.ticks_at(host_ns);
        let mapped_ns = mapping.host_ns(ticks);
        assert!(mapped_ns >= last_ns, "never backwards");
        assert!(mapped_ns.abs_diff(host_ns) <= mapping.error_bound_ns(ticks), "{host_ns}: {mapped_ns}");
        last_ns = mapped_ns;
    }
    assert_eq!(statistics(allocator).0.program.allocated_bytes.current, 0);
    assert_eq!(flex_allocator_release(allocator), FlexStatus::FLEX_OK);
}

#[test]
fn a_calibrator_gets_its_scratch_under_pressure_or_a_clear_error() {
    watchdog();
    let allocator = allocator();
    let clock = SimulatedClock::new(1_000_000_000, 0);
    let cache = Arc::new(ProgramCache::default());
    cache.put(allocate_program(allocator, PROGRAM_BYTES).unwrap());
    assert_eq!(TimestampCalibrator::new(allocator, clock).err(), Some(FlexStatus::FLEX_OUT_OF_MEMORY));
    cache.serve(allocator);
    let calibrator = thread::spawn(move || TimestampCalibrator::new(allocator, clock)).join().unwrap();
    drop(calibrator.unwrap());
    let (statistics, pressure) = statistics(allocator);
    assert_eq!((pressure.events, pressure.rescued, pressure.failed), (2, 1, 1));
    assert_eq!(statistics.program.allocated_bytes.current, 0);
    assert_eq!(flex_allocator_release(allocator), FlexStatus::FLEX_OK);
    assert_eq!(Arc::strong_count(&cache), 1, "the callback's argument has ended with the allocator");
}

#[test]
fn job_plans_are_built_by_several_threads_that_share_little_program_memory() {
    const THREADS: usize = 6;
    const JOBS: usize = 40;
    const JOB_BYTES: u64 = PROGRAM_BYTES / 32;
    watchdog();
    let allocator = allocator();
    let cache = Arc::new(ProgramCache::default());
    cache.serve(allocator);
    let start = Arc::new(Barrier::new(THREADS));
    let builders: Vec<_> = (0..THREADS)
        .map(|_| {
            let (cache, start) = (Arc::clone(&cache), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                for _ in 0..JOBS {
                    // The plan of a job needs its program; once built, the cache may lose it again.
                    cache.put(allocate_program(allocator, JOB_BYTES).expect("the cache makes room"));
                }
            })
        })
        .collect();
    for builder in builders {
        builder.join().unwrap();
    }
    let (before, pressure) = statistics(allocator);
    // A request that finds memory just when it is granted some gives one of the two back, so there may be a few more.
    assert!(before.program.allocation.allocated >= (THREADS * JOBS) as u64);
    assert!(pressure.events > 0 && pressure.rescued == pressure.events, "{pressure:?}");
    cache.clear();
    let (after, _) = statistics(allocator);
    assert_eq!((after.program.allocated_bytes.current, after.num_ooms), (0, 0));
    assert_eq!(flex_validate(allocator), FlexStatus::FLEX_OK);
    assert_eq!(flex_allocator_release(allocator), FlexStatus::FLEX_OK);
}
