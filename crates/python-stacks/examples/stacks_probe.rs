//! [`python_stacks`] as C functions, for tests/interpreters.rs: a script calls them through `ctypes.CDLL`, which
//! detaches the thread around the call as PyTorch does, or through `ctypes.PyDLL`, which does not.

use std::cell::Cell;
use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::OnceLock;

use python_stacks::{Frame, Mode, Stacks};

static STACKS: OnceLock<Stacks> = OnceLock::new();

static ATTACHED_ONLY: OnceLock<Stacks> = OnceLock::new();

thread_local! {
    /// What the script says of the calling thread.
    static ATTACHED: Cell<bool> = const { Cell::new(false) };
}

/// Prepares reading, and trusts it when the caller's stack was compared; 1 if stacks are read from memory, 2 if any was
/// before.
///
/// # Safety
/// Called attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_enable() -> i32 {
    // SAFETY: attached, to the interpreter that runs the script.
    let stacks =
        STACKS.get_or_init(|| unsafe { Stacks::new(|| ATTACHED.get()) }.expect("a CPython from 3.11 on"));
    if stacks.mode().is_some() || stacks.capture() != 0 {
        return 2;
    }
    // SAFETY: the caller's contract. What it finds is in the mode.
    let _ = unsafe { stacks.verify() };
    stacks.trust();
    i32::from(stacks.mode() == Some(Mode::Direct))
}

fn stacks() -> &'static Stacks {
    STACKS.get().expect("probe_enable comes first")
}

/// The site of the calling thread's stack.
#[unsafe(no_mangle)]
pub extern "C" fn probe_capture() -> u32 {
    stacks().capture()
}

/// Whether what is read from memory is what CPython's functions say.
///
/// # Safety
/// Called attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_verify() -> i32 {
    // SAFETY: the caller's contract.
    i32::from(unsafe { stacks().verify() })
}

/// The site that a native thread without a thread state gets.
#[unsafe(no_mangle)]
pub extern "C" fn probe_native() -> u32 {
    std::thread::spawn(|| stacks().capture()).join().unwrap_or(u32::MAX)
}

/// A site's frames as lines of file, function and line, separated by tabs. Leaks the text.
#[unsafe(no_mangle)]
pub extern "C" fn probe_frames(site: u32) -> *const c_char {
    text(stacks().frames(site))
}

fn text(frames: Vec<Frame>) -> *const c_char {
    let lines = frames.iter().map(|frame| format!("{}\t{}\t{}", frame.filename, frame.name, frame.line));
    CString::new(lines.collect::<Vec<_>>().join("\n"))
        .map_or(ptr::null(), |text| text.into_raw().cast_const())
}

/// As `probe_capture`, through CPython's functions. `attached` says how it is called.
///
/// # Safety
/// If `attached` is not 0, called attached. The first call is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_capture_attached_only(attached: i32) -> u32 {
    ATTACHED.set(attached != 0);
    let stacks = ATTACHED_ONLY.get_or_init(|| {
        // SAFETY: the caller's contract.
        unsafe { Stacks::attached_only(|| ATTACHED.get()) }.expect("a CPython from 3.11 on")
    });
    assert_eq!(stacks.mode(), Some(Mode::AttachedOnly));
    stacks.capture()
}

/// As `probe_frames`, for the sites of `probe_capture_attached_only`.
#[unsafe(no_mangle)]
pub extern "C" fn probe_frames_attached_only(site: u32) -> *const c_char {
    text(ATTACHED_ONLY.get().map(|stacks| stacks.frames(site)).unwrap_or_default())
}

/// Ends capturing.
#[unsafe(no_mangle)]
pub extern "C" fn probe_close() -> i32 {
    i32::from(stacks().close())
}
