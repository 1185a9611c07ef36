//! Statistics of a device as torch asks for them, and the calls that change what they count.

use std::panic::{AssertUnwindSafe, catch_unwind};

use flex::{FlexError, Stat, Statistics};

use super::storage::log;
use super::{Failure, Message, status};
use crate::runtime::{self, DeviceMemory, Runtime, runtime};

/// `SpyreStat`.
#[repr(C)]
#[derive(Default)]
struct AbiStat {
    current: i64,
    peak: i64,
    allocated: i64,
    freed: i64,
}

/// `SpyreStatistics`.
#[repr(C)]
#[derive(Default)]
struct AbiStatistics {
    allocated_bytes: AbiStat,
    requested_bytes: AbiStat,
    active_bytes: AbiStat,
    reserved_bytes: AbiStat,
    inactive_split_bytes: AbiStat,
    allocation: AbiStat,
    active: AbiStat,
    segment: AbiStat,
    inactive_split: AbiStat,
    num_ooms: i64,
    num_alloc_retries: i64,
    capacity_bytes: i64,
    free_bytes: i64,
    largest_free_bytes: i64,
}

impl From<&Stat> for AbiStat {
    fn from(stat: &Stat) -> Self {
        AbiStat {
            current: stat.current as i64,
            peak: stat.peak as i64,
            allocated: stat.allocated as i64,
            freed: stat.freed as i64,
        }
    }
}

impl From<&Statistics> for AbiStatistics {
    fn from(statistics: &Statistics) -> Self {
        AbiStatistics {
            allocated_bytes: AbiStat::from(&statistics.allocated_bytes),
            requested_bytes: AbiStat::from(&statistics.requested_bytes),
            active_bytes: AbiStat::from(&statistics.active_bytes),
            reserved_bytes: AbiStat::from(&statistics.reserved_bytes),
            inactive_split_bytes: AbiStat::from(&statistics.inactive_split_bytes),
            allocation: AbiStat::from(&statistics.allocation),
            active: AbiStat::from(&statistics.active),
            segment: AbiStat::from(&statistics.segment),
            inactive_split: AbiStat::from(&statistics.inactive_split),
            num_ooms: statistics.num_ooms as i64,
            num_alloc_retries: statistics.num_alloc_retries as i64,
            capacity_bytes: statistics.capacity_bytes as i64,
            free_bytes: statistics.free_bytes as i64,
            largest_free_bytes: statistics.largest_free_bytes as i64,
        }
    }
}

/// The statistics of a device.
///
/// # Safety
/// `out` is valid for writes, `message` names a buffer of its capacity.
#[unsafe(no_mangle)]
unsafe extern "C" fn spyre_rs_statistics(
    device_index: i32,
    out: *mut AbiStatistics,
    message: Message,
) -> i32 {
    status(&message, || {
        let device = runtime::device(device_index).map_err(Failure::error)?;
        let statistics = device.allocator.statistics().map_err(|error| Failure::of(error, device))?;
        // SAFETY: the caller's contract.
        unsafe { out.write(AbiStatistics::from(&statistics)) };
        Ok(())
    })
}

/// Starts the peaks of a device again. An unknown device has none.
#[unsafe(no_mangle)]
extern "C" fn spyre_rs_reset_peak(device_index: i32) {
    for_device(device_index, "reset the peaks", |device| device.allocator.reset_peak_statistics());
}

/// Starts the sums of a device again. An unknown device has none.
#[unsafe(no_mangle)]
extern "C" fn spyre_rs_reset_accumulated(device_index: i32) {
    for_device(device_index, "reset the sums", |device| device.allocator.reset_accumulated_statistics());
}

/// Returns unused memory of all devices.
#[unsafe(no_mangle)]
extern "C" fn spyre_rs_empty_cache() {
    for device in runtime().map_or(&[][..], Runtime::devices) {
        for_device(device.index as i32, "empty the cache", |device| device.allocator.empty_cache().map(drop));
    }
}

/// Acts on a device that exists. torch's interface has no room for an error, so `action` names it on standard error.
fn for_device(device_index: i32, action: &str, body: impl FnOnce(&DeviceMemory) -> Result<(), FlexError>) {
    let Ok(device) = runtime::device(device_index) else { return };
    // The panic hook has reported a panic.
    if let Ok(Err(error)) = catch_unwind(AssertUnwindSafe(|| body(device))) {
        log(format_args!("cannot {action} of device {device_index}: {error}"));
    }
}
