//! Status codes, the last error of each thread, and the one place where panics stop.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use flex::FlexError;
use flex::fork::{Forked, is_forked};

use crate::frame;

/// What a function returns. Every status but `FLEX_OK` comes with a text: see `flex_last_error`.
///
/// A function that does not return `FLEX_OK` has written nothing to the caller's variables.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(non_camel_case_types)] // The names that C sees.
pub enum FlexStatus {
    /// It worked.
    FLEX_OK = 0,
    /// No memory was found, also after the pressure callback. The text has the figures.
    FLEX_OUT_OF_MEMORY = 1,
    /// A size of 0, or one that does not fit in 64 bits when rounded.
    FLEX_INVALID_SIZE = 2,
    /// A directive that contradicts itself, or `near` names an allocation that is not live.
    FLEX_INVALID_PLACEMENT = 3,
    /// The handle is of no live allocation: freed before, null, or garbage.
    FLEX_UNKNOWN_ALLOCATION = 4,
    /// A domain that the device does not have.
    FLEX_UNKNOWN_DOMAIN = 5,
    /// A layout of regions that cannot be, or the device refused a region.
    FLEX_REGION_SETUP = 6,
    /// The device failed at something else.
    FLEX_DEVICE_FAILURE = 7,
    /// An invariant of the allocator does not hold: a bug of it, or of a program that wrote where it should not.
    FLEX_CORRUPTED = 8,
    /// This process is a forked child: device memory belongs to its parent.
    FLEX_FORKED = 9,
    /// A pointer that must not be null or is misaligned, or a number out of its range.
    FLEX_INVALID_ARGUMENT = 10,
    /// The handle is of no allocator: released before, null, or garbage.
    FLEX_UNKNOWN_ALLOCATOR = 11,
    /// The handle is of no callback: released or set before, null, or garbage.
    FLEX_UNKNOWN_CALLBACK = 12,
    /// The calling thread is in a pressure callback and has not released the mutex: see `flex_unlocked`.
    FLEX_LOCKED = 13,
    /// Not a lock that the calling thread may use now: it is unlocked, another thread's, of an ended call, or garbage.
    FLEX_NOT_LOCKED = 14,
    /// The pressure callback answered `FLEX_FAIL`.
    FLEX_CALLBACK_FAILED = 15,
    /// There is no such device here, or the device does not have what was asked for.
    FLEX_NOT_AVAILABLE = 16,
    /// A bug of this library. The text says more, and standard error too.
    FLEX_INTERNAL = 17,
}

/// The panic that fails a request whose callback answered `FLEX_FAIL`.
pub(crate) const CALLBACK_FAILED: &str = "the memory-pressure callback failed";

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    status: FlexStatus,
    text: Text,
}

/// A text that C can read; the fixed ones need no memory, for use with the allocator mutex held.
#[derive(Debug)]
enum Text {
    Fixed(&'static CStr),
    Formatted(CString),
}

impl Text {
    fn as_c_str(&self) -> &CStr {
        match self {
            Text::Fixed(text) => text,
            Text::Formatted(text) => text,
        }
    }
}

thread_local! {
    static LAST: RefCell<Text> = const { RefCell::new(Text::Fixed(c"")) };
}

impl Failure {
    pub(crate) fn new(status: FlexStatus, text: impl Into<String>) -> Self {
        let text: String = text.into().replace('\0', "\u{fffd}");
        let text = CString::new(text).map_or(Text::Fixed(c"(a text with a NUL)"), Text::Formatted);
        Failure { status, text }
    }

    pub(crate) const fn fixed(status: FlexStatus, text: &'static CStr) -> Self {
        Failure { status, text: Text::Fixed(text) }
    }

    pub(crate) const fn invalid_argument(text: &'static CStr) -> Self {
        Failure::fixed(FlexStatus::FLEX_INVALID_ARGUMENT, text)
    }

    const FORKED: Failure = Failure::fixed(
        FlexStatus::FLEX_FORKED,
        c"the allocator cannot be used in a forked process; start the process with `spawn` instead",
    );

    fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        match text.or_else(|| panic.downcast_ref::<&str>().copied()) {
            Some(CALLBACK_FAILED) => {
                Failure::fixed(FlexStatus::FLEX_CALLBACK_FAILED, c"the memory-pressure callback failed")
            }
            text => Failure::new(
                FlexStatus::FLEX_INTERNAL,
                format!("internal error: {}", text.unwrap_or("a panic without a text")),
            ),
        }
    }

    /// Keeps the text as this thread's last error. On a thread whose thread-locals are gone, the text is lost.
    fn report(self) -> FlexStatus {
        let _ = LAST.try_with(|last| *last.borrow_mut() = self.text);
        self.status
    }
}

impl From<Forked> for Failure {
    fn from(_: Forked) -> Self {
        Failure::FORKED
    }
}

impl From<FlexError> for Failure {
    fn from(error: FlexError) -> Self {
        let status = match &error {
            FlexError::OutOfMemory(_) => FlexStatus::FLEX_OUT_OF_MEMORY,
            FlexError::InvalidSize { .. } => FlexStatus::FLEX_INVALID_SIZE,
            FlexError::InvalidPlacement(_) => FlexStatus::FLEX_INVALID_PLACEMENT,
            FlexError::UnknownAllocation { .. } => FlexStatus::FLEX_UNKNOWN_ALLOCATION,
            FlexError::UnknownDomain { .. } => FlexStatus::FLEX_UNKNOWN_DOMAIN,
            FlexError::RegionSetup(_) => FlexStatus::FLEX_REGION_SETUP,
            FlexError::Device(_) => FlexStatus::FLEX_DEVICE_FAILURE,
            FlexError::Corrupted(_) => FlexStatus::FLEX_CORRUPTED,
            FlexError::Forked => return Failure::FORKED,
            _ => FlexStatus::FLEX_INTERNAL,
        };
        Failure::new(status, error.to_string())
    }
}

/// Runs the body of a function of the C ABI: not in a forked child, and no panic leaves it.
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), Failure>) -> FlexStatus {
    if is_forked() {
        return Failure::FORKED.report();
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => FlexStatus::FLEX_OK,
        Ok(Err(failure)) => failure.report(),
        Err(panic) => Failure::of_panic(&*panic).report(),
    }
}

/// As [`guarded`], for bodies that take an allocator mutex or call a device.
pub(crate) fn guarded_unlocked(body: impl FnOnce() -> Result<(), Failure>) -> FlexStatus {
    guarded(|| {
        if frame::is_locked() {
            return Err(Failure::fixed(
                FlexStatus::FLEX_LOCKED,
                c"this thread holds the allocator mutex: in a pressure callback, call this inside flex_unlocked",
            ));
        }
        body()
    })
}

/// The text of the last function that failed on this thread: never null, empty if none has. It is valid until the next
/// function fails on this thread. A success does not change it.
#[unsafe(no_mangle)]
pub extern "C" fn flex_last_error() -> *const c_char {
    let last = LAST.try_with(|last| last.borrow().as_c_str().as_ptr());
    last.unwrap_or(c"(this thread is ending)".as_ptr())
}

/// The name of a status, such as "FLEX_OUT_OF_MEMORY"; "(unknown status)" for other numbers. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn flex_status_name(status: i32) -> *const c_char {
    usize::try_from(status).ok().and_then(|index| NAMES.get(index)).unwrap_or(&c"(unknown status)").as_ptr()
}

/// In the order of the numbers.
const NAMES: [&CStr; 18] = [
    c"FLEX_OK",
    c"FLEX_OUT_OF_MEMORY",
    c"FLEX_INVALID_SIZE",
    c"FLEX_INVALID_PLACEMENT",
    c"FLEX_UNKNOWN_ALLOCATION",
    c"FLEX_UNKNOWN_DOMAIN",
    c"FLEX_REGION_SETUP",
    c"FLEX_DEVICE_FAILURE",
    c"FLEX_CORRUPTED",
    c"FLEX_FORKED",
    c"FLEX_INVALID_ARGUMENT",
    c"FLEX_UNKNOWN_ALLOCATOR",
    c"FLEX_UNKNOWN_CALLBACK",
    c"FLEX_LOCKED",
    c"FLEX_NOT_LOCKED",
    c"FLEX_CALLBACK_FAILED",
    c"FLEX_NOT_AVAILABLE",
    c"FLEX_INTERNAL",
];

/// The version of this ABI. It changes when a program built against an older `flex.h` no longer works.
pub const FLEX_ABI_VERSION: u32 = 1;

/// The `FLEX_ABI_VERSION` of the library, to compare with that of the header.
#[unsafe(no_mangle)]
pub extern "C" fn flex_abi_version() -> u32 {
    FLEX_ABI_VERSION
}

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn flex_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no NUL"),
        };
    VERSION.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error() -> String {
        // SAFETY: a valid text of this thread, copied before anything else fails here.
        unsafe { CStr::from_ptr(flex_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn names_are_in_the_order_of_the_numbers() {
        for (number, name) in NAMES.iter().enumerate() {
            assert_eq!(flex_status_name(number as i32), name.as_ptr());
        }
        assert_eq!(NAMES[FlexStatus::FLEX_INTERNAL as usize], c"FLEX_INTERNAL");
        assert_eq!(flex_status_name(-1), flex_status_name(18));
    }

    #[test]
    fn errors_and_panics_become_statuses_with_a_text() {
        assert_eq!(guarded(|| Ok(())), FlexStatus::FLEX_OK);
        assert_eq!(last_error(), "");
        let failed = guarded(|| Err(FlexError::InvalidSize { requested_bytes: 0, chunk_count: 1 }.into()));
        assert_eq!(failed, FlexStatus::FLEX_INVALID_SIZE);
        assert!(last_error().starts_with("cannot allocate 0 bytes"));
        let panicked = guarded(|| std::panic::resume_unwind(Box::new("some\0thing")));
        assert_eq!(panicked, FlexStatus::FLEX_INTERNAL);
        assert_eq!(last_error(), "internal error: some\u{fffd}thing");
        let callback = guarded(|| std::panic::resume_unwind(Box::new(CALLBACK_FAILED)));
        assert_eq!(callback, FlexStatus::FLEX_CALLBACK_FAILED);
        assert_eq!(last_error(), CALLBACK_FAILED);
        assert_eq!(std::thread::spawn(last_error).join().unwrap(), "", "each thread has its own");
    }
}
