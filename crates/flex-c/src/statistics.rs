//! Snapshots of what an allocator has counted.

use flex::pressure::PressureStatistics;
use flex::{ProgramStatistics, Stat, Statistics};

use crate::allocator::{FlexAllocator, find};
use crate::out::Out;
use crate::status::{FlexStatus, guarded, guarded_unlocked};

/// A quantity that rises and falls.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlexStat {
    /// The value now.
    pub current: u64,
    /// The highest value since the peaks were reset.
    pub peak: u64,
    /// The sum of all increases since the sums were reset.
    pub allocated: u64,
    /// The sum of all decreases since the sums were reset.
    pub freed: u64,
}

/// Counters of program memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlexProgramStatistics {
    /// Bytes in occupied blocks, rounded sizes.
    pub allocated_bytes: FlexStat,
    /// Bytes asked for by the owners of the occupied blocks.
    pub requested_bytes: FlexStat,
    /// Occupied blocks.
    pub allocation: FlexStat,
    /// Usable bytes of the acquired regions.
    pub reserved_bytes: FlexStat,
    /// Usable bytes of all program regions, acquired or not.
    pub capacity_bytes: u64,
    /// Bytes in free blocks; a region not acquired is one free block.
    pub free_bytes: u64,
}

/// Everything counted for one allocator, at one moment. Tensor memory, unless it says otherwise.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlexStatistics {
    /// Bytes in occupied blocks, rounded sizes.
    pub allocated_bytes: FlexStat,
    /// Bytes asked for by the owners of the occupied blocks.
    pub requested_bytes: FlexStat,
    /// Bytes in blocks that are occupied or wait for the device; today the occupied ones.
    pub active_bytes: FlexStat,
    /// Usable bytes of the acquired regions.
    pub reserved_bytes: FlexStat,
    /// Bytes in free blocks of regions that hold at least one occupied block.
    pub inactive_split_bytes: FlexStat,
    /// Occupied blocks; an interleaved allocation counts once per chunk.
    pub allocation: FlexStat,
    /// Occupied blocks and those that wait for the device; today the occupied ones.
    pub active: FlexStat,
    /// Acquired regions.
    pub segment: FlexStat,
    /// Free blocks of regions that hold at least one occupied block.
    pub inactive_split: FlexStat,
    /// Requests that ended in an out-of-memory error, of either memory type.
    pub num_ooms: u64,
    /// Requests whose first search failed and that were searched for again, of either memory type.
    pub num_alloc_retries: u64,
    /// Usable bytes of all tensor regions, acquired or not.
    pub capacity_bytes: u64,
    /// Bytes in free blocks; a region not acquired is one free block.
    pub free_bytes: u64,
    /// The largest free block, in bytes.
    pub largest_free_bytes: u64,
    /// Program memory.
    pub program: FlexProgramStatistics,
}

/// Why no collection ran for a request: places in `FlexPressureStatistics.skipped`.
pub type FlexSkipReason = u32;
/// The policy is `off`.
pub const FLEX_SKIP_POLICY: FlexSkipReason = 0;
/// The policy is `respect_disable` and the program has disabled its collector.
pub const FLEX_SKIP_DISABLED: FlexSkipReason = 1;
/// The thread was already inside a collection or a pressure callback.
pub const FLEX_SKIP_REENTRANT: FlexSkipReason = 2;
/// The interpreter is shutting down.
pub const FLEX_SKIP_FINALIZING: FlexSkipReason = 3;
/// The process is a forked child.
pub const FLEX_SKIP_FORKED: FlexSkipReason = 4;
/// The deadline of the request passed before a collection could run.
pub const FLEX_SKIP_TIMEOUT: FlexSkipReason = 5;
/// There is no interpreter, or no callback.
pub const FLEX_SKIP_UNINITIALIZED: FlexSkipReason = 6;
/// The thread belongs to another interpreter.
pub const FLEX_SKIP_INTERPRETER: FlexSkipReason = 7;
/// How many reasons there are.
pub const FLEX_SKIP_REASONS: usize = 8;

/// What an allocator has counted of memory pressure. Times in nanoseconds.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlexPressureStatistics {
    /// Requests whose first search failed although some state of the device could serve them.
    pub events: u64,
    /// Events that ended with memory.
    pub rescued: u64,
    /// Events that ended without.
    pub failed: u64,
    /// Rescued events that ran no collection of their own.
    pub coalesced: u64,
    /// Young collections that ran for a request of this device.
    pub young_collections: u64,
    /// Full collections that ran for a request of this device.
    pub full_collections: u64,
    /// Bytes of this device freed by the gate's collections, on the threads that ran them.
    pub reclaimed_bytes: u64,
    /// Bytes of this device freed inside any collection, the program's own included.
    pub collection_freed_bytes: u64,
    /// Time spent in the collections counted here.
    pub collection_time_ns: u64,
    /// The longest of them.
    pub collection_max_ns: u64,
    /// Collections that outlived the deadline of the request they ran for.
    pub collectors_abandoned: u64,
    /// Requests for which no collection ran, by reason.
    pub skipped: [u64; FLEX_SKIP_REASONS],
}

/// One consistent snapshot of an allocator's statistics. Memory whose free is pending is freed first.
///
/// # Safety
/// `statistics` is null (an error) or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_statistics(
    allocator: FlexAllocator,
    statistics: *mut FlexStatistics,
) -> FlexStatus {
    guarded_unlocked(|| {
        // SAFETY: the caller's contract.
        let out = unsafe { Out::new(statistics, c"flex_statistics: statistics is null or misaligned") }?;
        out.write(FlexStatistics::from(&find(allocator)?.statistics()?));
        Ok(())
    })
}

/// Starts every peak again at the value of now.
#[unsafe(no_mangle)]
pub extern "C" fn flex_reset_peak_statistics(allocator: FlexAllocator) -> FlexStatus {
    guarded_unlocked(|| Ok(find(allocator)?.reset_peak_statistics()?))
}

/// Starts the sums again at 0: allocated, freed, and the counts of retries and failures.
#[unsafe(no_mangle)]
pub extern "C" fn flex_reset_accumulated_statistics(allocator: FlexAllocator) -> FlexStatus {
    guarded_unlocked(|| Ok(find(allocator)?.reset_accumulated_statistics()?))
}

/// What an allocator has counted of memory pressure. Exact when no request is under way.
///
/// # Safety
/// `statistics` is null (an error) or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_pressure_statistics(
    allocator: FlexAllocator,
    statistics: *mut FlexPressureStatistics,
) -> FlexStatus {
    guarded(|| {
        // SAFETY: the caller's contract.
        let out =
            unsafe { Out::new(statistics, c"flex_pressure_statistics: statistics is null or misaligned") }?;
        let allocator = find(allocator)?;
        let counted = FlexPressureStatistics::from(&allocator.pressure_statistics());
        crate::frame::release(allocator);
        out.write(counted);
        Ok(())
    })
}

/// Starts the pressure statistics again at 0.
#[unsafe(no_mangle)]
pub extern "C" fn flex_reset_pressure_statistics(allocator: FlexAllocator) -> FlexStatus {
    guarded_unlocked(|| {
        find(allocator)?.reset_pressure_statistics();
        Ok(())
    })
}

impl From<&Stat> for FlexStat {
    fn from(stat: &Stat) -> Self {
        FlexStat { current: stat.current, peak: stat.peak, allocated: stat.allocated, freed: stat.freed }
    }
}

impl From<&ProgramStatistics> for FlexProgramStatistics {
    fn from(program: &ProgramStatistics) -> Self {
        FlexProgramStatistics {
            allocated_bytes: FlexStat::from(&program.allocated_bytes),
            requested_bytes: FlexStat::from(&program.requested_bytes),
            allocation: FlexStat::from(&program.allocation),
            reserved_bytes: FlexStat::from(&program.reserved_bytes),
            capacity_bytes: program.capacity_bytes,
            free_bytes: program.free_bytes,
        }
    }
}

impl From<&Statistics> for FlexStatistics {
    fn from(statistics: &Statistics) -> Self {
        FlexStatistics {
            allocated_bytes: FlexStat::from(&statistics.allocated_bytes),
            requested_bytes: FlexStat::from(&statistics.requested_bytes),
            active_bytes: FlexStat::from(&statistics.active_bytes),
            reserved_bytes: FlexStat::from(&statistics.reserved_bytes),
            inactive_split_bytes: FlexStat::from(&statistics.inactive_split_bytes),
            allocation: FlexStat::from(&statistics.allocation),
            active: FlexStat::from(&statistics.active),
            segment: FlexStat::from(&statistics.segment),
            inactive_split: FlexStat::from(&statistics.inactive_split),
            num_ooms: statistics.num_ooms,
            num_alloc_retries: statistics.num_alloc_retries,
            capacity_bytes: statistics.capacity_bytes,
            free_bytes: statistics.free_bytes,
            largest_free_bytes: statistics.largest_free_bytes,
            program: FlexProgramStatistics::from(&statistics.program),
        }
    }
}

impl From<&PressureStatistics> for FlexPressureStatistics {
    fn from(pressure: &PressureStatistics) -> Self {
        FlexPressureStatistics {
            events: pressure.events,
            rescued: pressure.rescued,
            failed: pressure.failed,
            coalesced: pressure.coalesced,
            young_collections: pressure.young_collections,
            full_collections: pressure.full_collections,
            reclaimed_bytes: pressure.reclaimed_bytes,
            collection_freed_bytes: pressure.collection_freed_bytes,
            collection_time_ns: pressure.collection_time_ns,
            collection_max_ns: pressure.collection_max_ns,
            collectors_abandoned: pressure.collectors_abandoned,
            skipped: pressure.skipped,
        }
    }
}
