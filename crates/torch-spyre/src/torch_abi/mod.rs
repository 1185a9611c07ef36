//! What the C++ shim calls: the Rust side of `shim/spyre_abi.h`. No panic crosses it.
//!
//! A tensor's `DataPtr` context is its block's handle and its device's index in one word, so that a free needs no
//! memory and no look-up: device in the top byte, the handle below.

use std::ffi::{c_char, c_void};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use flex::fork::is_forked;
use flex::{BlockHandle, FlexError, Stat, Statistics};

use crate::message;
use crate::runtime::{DeviceMemory, Runtime, runtime};

const OK: i32 = 0;
const OUT_OF_MEMORY: i32 = 1;
const ERROR: i32 = 2;

const DEVICE_SHIFT: u32 = 56;

/// `SpyreMessage`.
#[repr(C)]
struct Message {
    text: *mut c_char,
    capacity: usize,
}

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

unsafe extern "C" {
    fn spyre_shim_register();
    fn spyre_shim_profiling() -> bool;
    fn spyre_shim_report_usage(
        data: *mut c_void,
        nbytes: i64,
        total_allocated: usize,
        total_reserved: usize,
        device: i32,
    );
    fn spyre_shim_current_device() -> i32;
    fn spyre_shim_set_current_device(device: i32);
}

/// A failure as it crosses the boundary.
struct Failure {
    status: i32,
    text: String,
}

impl Failure {
    fn error(text: impl Into<String>) -> Self {
        Failure { status: ERROR, text: text.into() }
    }

    fn of(error: FlexError, device: &DeviceMemory) -> Self {
        match error {
            FlexError::OutOfMemory(oom) => {
                Failure { status: OUT_OF_MEMORY, text: message::out_of_memory(&oom, device.index) }
            }
            FlexError::Forked => Failure::error(FORKED),
            FlexError::InvalidSize { requested_bytes, .. } => Failure::error(format!(
                "spyre: cannot allocate {requested_bytes} bytes; expected a size that fits the device"
            )),
            other => Failure::error(format!("spyre: {other}")),
        }
    }
}

/// What use in a forked child raises, as CUDA says it.
pub(crate) const FORKED: &str = "Cannot re-initialize spyre in forked subprocess. To use spyre with multiprocessing, \
                                 you must use the 'spawn' start method";

/// Why the devices cannot be used, if they cannot.
pub(crate) fn ready() -> Result<&'static Runtime, String> {
    if is_forked() {
        return Err(FORKED.into());
    }
    runtime().ok_or_else(|| {
        let failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
        failure
            .clone()
            .unwrap_or_else(|| "spyre is not initialized; expected torch_spyre to be imported".into())
    })
}

/// Why initialisation failed, for those who use the device all the same.
static FAILURE: Mutex<Option<String>> = Mutex::new(None);

/// Keeps why initialisation failed.
pub(crate) fn set_failure(text: String) {
    *FAILURE.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
}

/// A device by index, or CUDA's words for a bad one.
pub(crate) fn device(index: i32) -> Result<&'static DeviceMemory, String> {
    let runtime = ready()?;
    runtime.device(index).ok_or_else(|| {
        format!(
            "spyre error: invalid device ordinal {index}; expected an index from 0 to {}",
            runtime.devices().len() - 1
        )
    })
}

/// Registers the device with torch.
pub(crate) fn register() {
    // SAFETY: idempotent and callable from any thread.
    unsafe { spyre_shim_register() };
}

/// This thread's current device.
pub(crate) fn current_device() -> i32 {
    // SAFETY: reads a thread-local.
    unsafe { spyre_shim_current_device() }
}

/// Sets this thread's current device, which exists.
pub(crate) fn set_current_device(index: i32) {
    // SAFETY: writes a thread-local.
    unsafe { spyre_shim_set_current_device(index) };
}

/// Runs `body`, turning a panic and an error into a status and a message.
fn status(message: &Message, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return OK,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::error(format!("spyre: internal error: {}", panic_text(&*panic))),
    };
    write_message(message, &failure.text);
    failure.status
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text")
}

fn write_message(message: &Message, text: &str) {
    let Some(room) = message.capacity.checked_sub(1) else { return };
    let mut length = text.len().min(room);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    // SAFETY: the shim hands a buffer of `capacity` bytes; `length` + 1 fit.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast::<c_char>(), message.text, length);
        *message.text.add(length) = 0;
    }
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
    let device = device(device_index).map_err(Failure::error)?;
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
fn log(line: std::fmt::Arguments<'_>) {
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
        let result = device.allocator.free_block(handle);
        if let Some(runtime) = runtime()
            && (runtime.configuration.debug || result.is_err())
        {
            log(format_args!("free {bytes} bytes on device {}: {result:?}", device.index));
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
    // SAFETY: reads torch's thread-local and global profiler state.
    if !unsafe { spyre_shim_profiling() } {
        return None;
    }
    let chunk = device.allocator.block(handle).ok()??;
    device.allocator.device().host_address(chunk.address).map(|address| address as *mut c_void)
}

/// Tells torch's profiler, if it listens. No lock is held; the profiler may take the GIL.
fn report_usage(device: &DeviceMemory, address: *mut c_void, bytes: i64) {
    // SAFETY: reads torch's profiler state.
    if !unsafe { spyre_shim_profiling() } || crate::interpreter::is_finalizing() {
        return;
    }
    let Ok(statistics) = device.allocator.statistics() else { return };
    let (allocated, reserved) = (statistics.allocated_bytes.current, statistics.reserved_bytes.current);
    // SAFETY: no lock is held and the process is no forked child, or the statistics would have failed.
    unsafe {
        spyre_shim_report_usage(address, bytes, allocated as usize, reserved as usize, device.index as i32)
    };
}

/// Number of devices; 0 before initialisation.
#[unsafe(no_mangle)]
extern "C" fn spyre_rs_device_count() -> i32 {
    runtime().map_or(0, |runtime| runtime.devices().len() as i32)
}

/// Whether the devices can be used, or why not.
#[unsafe(no_mangle)]
extern "C" fn spyre_rs_ensure_ready(message: Message) -> i32 {
    status(&message, || ready().map(drop).map_err(Failure::error))
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
        let device = device(device_index).map_err(Failure::error)?;
        let statistics = device.allocator.statistics().map_err(|error| Failure::of(error, device))?;
        // SAFETY: the caller's contract.
        unsafe { out.write(AbiStatistics::from(&statistics)) };
        Ok(())
    })
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

/// Starts the peaks of a device again. An unknown device has none.
#[unsafe(no_mangle)]
extern "C" fn spyre_rs_reset_peak(device_index: i32) {
    for_device(device_index, |device| drop(device.allocator.reset_peak_statistics()));
}

/// Starts the sums of a device again. An unknown device has none.
#[unsafe(no_mangle)]
extern "C" fn spyre_rs_reset_accumulated(device_index: i32) {
    for_device(device_index, |device| drop(device.allocator.reset_accumulated_statistics()));
}

/// Returns unused memory of all devices.
#[unsafe(no_mangle)]
extern "C" fn spyre_rs_empty_cache() {
    let devices = runtime().map_or(&[][..], Runtime::devices);
    for device in devices {
        for_device(device.index as i32, |device| drop(device.allocator.empty_cache()));
    }
}

/// The device whose memory holds an address, or -1.
#[unsafe(no_mangle)]
extern "C" fn spyre_rs_device_of(address: *const c_void) -> i32 {
    catch_unwind(AssertUnwindSafe(|| device_of(address as usize))).unwrap_or(-1)
}

/// The device whose memory holds an address, or -1.
pub(crate) fn device_of(address: usize) -> i32 {
    let devices = ready().map_or(&[][..], Runtime::devices);
    let holder = devices.iter().find(|device| device.allocator.holds_host_address(address));
    holder.map_or(-1, |device| device.index as i32)
}

fn for_device(device_index: i32, body: impl FnOnce(&DeviceMemory)) {
    if let Ok(device) = device(device_index) {
        // The panic hook has reported it.
        let _ = catch_unwind(AssertUnwindSafe(|| body(device)));
    }
}
