//! What the C++ shim calls, and what it offers: the Rust side of `shim/spyre_abi.h`. No panic crosses it.
//!
//! Here is how statuses and messages cross, and the calls about devices; [`storage`] allocates and frees,
//! [`statistics`] reports. No lock of its own.

mod statistics;
mod storage;

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use flex::FlexError;
use flex::fork::is_forked;

use crate::message;
use crate::runtime::{self, DeviceMemory, FORKED, runtime};

const OK: i32 = 0;
const OUT_OF_MEMORY: i32 = 1;
const ERROR: i32 = 2;

/// `SpyreMessage`.
#[repr(C)]
struct Message {
    text: *mut c_char,
    capacity: usize,
}

unsafe extern "C" {
    fn spyre_shim_register();
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
                Failure { status: OUT_OF_MEMORY, text: message::out_of_memory(&oom, device) }
            }
            FlexError::Forked => Failure::error(FORKED),
            FlexError::InvalidSize { requested_bytes, .. } => Failure::error(format!(
                "spyre: cannot allocate {requested_bytes} bytes; expected a size that fits the device"
            )),
            other => Failure::error(format!("spyre: {other}")),
        }
    }
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

/// Whether the process is a forked child, which may find any lock held for ever.
#[unsafe(no_mangle)]
extern "C" fn spyre_rs_is_forked() -> bool {
    is_forked()
}

/// Number of devices; 0 before initialisation.
#[unsafe(no_mangle)]
extern "C" fn spyre_rs_device_count() -> i32 {
    runtime().map_or(0, |runtime| runtime.devices().len() as i32)
}

/// Whether the devices can be used, or why not.
#[unsafe(no_mangle)]
extern "C" fn spyre_rs_ensure_ready(message: Message) -> i32 {
    status(&message, || runtime::ready().map(drop).map_err(Failure::error))
}

/// The device whose memory holds an address, or -1.
#[unsafe(no_mangle)]
extern "C" fn spyre_rs_device_of(address: *const c_void) -> i32 {
    catch_unwind(AssertUnwindSafe(|| runtime::device_of(address as usize))).unwrap_or(-1)
}
