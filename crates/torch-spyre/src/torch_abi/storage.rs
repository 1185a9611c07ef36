//! Storages of tensors: allocating, freeing, and the reports to torch's profiler.
//!
//! A storage's `DataPtr` context is its block's handle and its device's index in one word, so that a free needs no
//! memory and no look-up: device in the top byte, the handle below. A free takes no lock that it would have to wait
//! for, unless a profiler listens.

use std::ffi::c_void;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use flex::BlockHandle;
use flex::fork::is_forked;

use super::{Failure, Message, status};
use crate::interpreter::{self, cycles};
use crate::runtime::{self, DeviceMemory, runtime};

const DEVICE_SHIFT: u32 = 56;

unsafe extern "C" {
    fn spyre_shim_profiling(collecting: bool) -> bool;
    fn spyre_shim_report_usage(
        data: *mut c_void,
        nbytes: i64,
        total_allocated: usize,
        total_reserved: usize,
        device: i32,
    );
}

fn context_of(device: usize, handle: BlockHandle) -> *mut c_void {
    ((device as u64) << DEVICE_SHIFT | handle.to_raw()) as *mut c_void
}

fn block_of(context: *mut c_void) -> Option<(&'static DeviceMemory, BlockHandle)> {
    let word = context as u64;
    let device = runtime()?.device((word >> DEVICE_SHIFT) as i32)?;
    Some((device, BlockHandle::from_raw(word & ((1 << DEVICE_SHIFT) - 1))))
}

/// Allocates a tensor's storage.
///
/// # Safety
/// `data` and `context` are valid for writes, `message` names a buffer of its capacity.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn spyre_rs_allocate(
    device_index: i32,
    nbytes: usize,
    data: *mut *mut c_void,
    context: *mut *mut c_void,
    message: Message,
) -> i32 {
    let (address, word, status) = {
        let (mut address, mut word) = (std::ptr::null_mut(), std::ptr::null_mut());
        let status = status(&message, || {
            if nbytes > 0 {
                (address, word) = allocate(device_index, nbytes as u64)?;
            }
            Ok(())
        });
        (address, word, status)
    };
    // SAFETY: the caller's contract.
    unsafe {
        *data = address;
        *context = word;
    }
    status
}

fn allocate(device_index: i32, nbytes: u64) -> Result<(*mut c_void, *mut c_void), Failure> {
    let device = runtime::device(device_index).map_err(Failure::error)?;
    let (handle, chunk) = device.allocate(nbytes).map_err(|error| Failure::of(error, device))?;
    let Some(address) = device.allocator.device().host_address(chunk.address) else {
        let freed = device.allocator.free_block(handle);
        return Err(Failure::error(format!("spyre: {} is not host-addressable ({freed:?})", device.name())));
    };
    let address = address as *mut c_void;
    if let Some(runtime) = runtime()
        && runtime.configuration.debug
    {
        log(format_args!("allocate {nbytes} bytes at {address:p} on device {}", device.index));
    }
    report_usage(device, address, chunk.size_bytes as i64);
    Ok((address, context_of(device.index, handle)))
}

/// Writes a line to standard error, which may be closed.
pub(super) fn log(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "spyre: {line}");
}

/// Frees a tensor's storage; the deleter of its `DataPtr`.
#[unsafe(no_mangle)]
extern "C" fn spyre_rs_free(context: *mut c_void) {
    if context.is_null() || is_forked() {
        return;
    }
    let freed = catch_unwind(AssertUnwindSafe(|| {
        let Some((device, handle)) = block_of(context) else { return };
        let bytes = device.allocator.block_size_bytes(handle);
        let observed = observed_address(device, handle);
        cycles::count_free(device, handle, bytes);
        let result = device.allocator.free_block(handle);
        if let Some(runtime) = runtime()
            && (runtime.configuration.debug || result.is_err())
        {
            let failure = result.err().map(|error| format!(": {error}")).unwrap_or_default();
            log(format_args!("free {bytes} bytes on device {}{failure}", device.index));
        }
        if let Some(address) = observed {
            report_usage(device, address, -(bytes as i64));
        }
    }));
    // The panic hook has reported it; a deleter must not throw.
    drop(freed);
}

/// The address of a block that torch's profiler wants to hear of. Looking it up takes the mutex, a leaf, and
/// happens only while profiling.
fn observed_address(device: &DeviceMemory, handle: BlockHandle) -> Option<*mut c_void> {
    if !profiling() {
        return None;
    }
    let chunk = device.allocator.block(handle).ok()??;
    device.allocator.device().host_address(chunk.address).map(|address| address as *mut c_void)
}

/// Whether torch's profiler wants to hear of what this thread allocates and frees.
#[inline]
fn profiling() -> bool {
    // SAFETY: reads torch's profiler state.
    unsafe { spyre_shim_profiling(interpreter::is_collector_thread()) }
}

/// Tells torch's profiler, if it listens. No lock is held; the profiler may take the GIL.
fn report_usage(device: &DeviceMemory, address: *mut c_void, bytes: i64) {
    if !profiling() || interpreter::is_finalizing() {
        return;
    }
    let Ok(statistics) = device.allocator.statistics() else { return };
    let (allocated, reserved) = (statistics.allocated_bytes.current, statistics.reserved_bytes.current);
    // SAFETY: no lock is held and the process is no forked child, or the statistics would have failed.
    unsafe {
        spyre_shim_report_usage(address, bytes, allocated as usize, reserved as usize, device.index as i32)
    };
}
