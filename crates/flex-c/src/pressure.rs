//! The pressure callback as C sees it.
//!
//! The callback gets a lock, the request, and its own argument. With the lock it may look; to act it calls
//! [`flex_unlocked`], the only function that releases the mutex. The contract is in `docs/lock_ordering.md`.

use std::ffi::c_void;
use std::panic::resume_unwind;
use std::sync::Arc;

use flex::AllocatorGuard;
use flex::fork::is_forked;
use flex::pressure::{MemoryPressureCallback, PressureCause, PressureRequest, SharedCallback, Verdict};
use smallvec::SmallVec;

use crate::allocator::{FlexAllocator, find};
use crate::frame;
use crate::handles::Table;
use crate::out::Out;
use crate::statistics::FlexStatistics;
use crate::status::{CALLBACK_FAILED, Failure, FlexStatus, guarded, guarded_unlocked};

/// The locked allocator, as a callback is handed it. Valid on the callback's thread until it returns, except inside
/// `flex_unlocked` and `flex_lock_call`.
#[derive(Debug)]
pub struct FlexLock {
    _opaque: [u8; 0],
}

/// What a callback thinks of calling it again. Whatever it answers, what counts is what the next search finds.
pub type FlexVerdict = i32;
/// If the search fails, call again: at most 64 times for one request.
pub const FLEX_RETRY: FlexVerdict = 0;
/// If the search fails, the request has failed.
pub const FLEX_GIVE_UP: FlexVerdict = 1;
/// Fail the request now, without a search: `flex_allocate` returns `FLEX_CALLBACK_FAILED`.
pub const FLEX_FAIL: FlexVerdict = 2;

/// Why nothing was found.
pub type FlexPressureCause = i32;
/// Less is free than was asked for.
pub const FLEX_EXHAUSTED: FlexPressureCause = 0;
/// Enough is free, but no block fits.
pub const FLEX_FRAGMENTED: FlexPressureCause = 1;

/// A request that the allocator could not serve. Valid while the callback runs.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FlexPressureRequest {
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// Free bytes in the regions it may use, when its first search failed.
    pub free_bytes: u64,
    /// The largest free block in those regions, when its first search failed.
    pub largest_free_bytes: u64,
    /// The domains it may use.
    pub domains: *const u32,
    /// How many there are.
    pub domain_count: usize,
    /// How often the callback has been called for this request, from 1.
    pub attempt: u32,
    /// `FLEX_EXHAUSTED` or `FLEX_FRAGMENTED`.
    pub cause: FlexPressureCause,
}

/// What an allocator calls when its regions are exhausted: on the requesting thread, with the allocator mutex held.
///
/// Several threads may be in it at once. It must return: a C++ exception that leaves it, or `longjmp` or
/// `pthread_exit` out of it, ends the process or is undefined. Answers that are no verdict mean `FLEX_GIVE_UP`.
pub type FlexPressureCallback = Option<
    unsafe extern "C-unwind" fn(
        lock: *mut FlexLock,
        request: *const FlexPressureRequest,
        arg: *mut c_void,
    ) -> FlexVerdict,
>;

/// What `flex_unlocked` runs. It must return, as a callback must.
pub type FlexBody = Option<unsafe extern "C-unwind" fn(arg: *mut c_void)>;

/// What ends an argument that is no longer used. It must return, as a callback must.
pub type FlexDestroy = Option<unsafe extern "C-unwind" fn(arg: *mut c_void)>;

/// A handle to a callback that was taken out of an allocator. All 0 is no handle.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlexCallback {
    /// For comparing and storing only.
    pub id: u64,
}

static CALLBACKS: Table<SharedCallback> = Table::new(3);

const UNKNOWN: Failure = Failure::fixed(
    FlexStatus::FLEX_UNKNOWN_CALLBACK,
    c"the handle is of no callback: released or set before, null, or garbage",
);

/// A C function with its argument.
struct Callback {
    function:
        unsafe extern "C-unwind" fn(*mut FlexLock, *const FlexPressureRequest, *mut c_void) -> FlexVerdict,
    arg: *mut c_void,
    destroy: FlexDestroy,
}

// SAFETY: the contract of `flex_set_pressure_callback`: function, argument and destructor may be used on any thread.
unsafe impl Send for Callback {}
// SAFETY: as above; by several threads at once.
unsafe impl Sync for Callback {}

impl MemoryPressureCallback for Callback {
    fn on_pressure(&self, guard: &mut AllocatorGuard<'_>, request: &mut PressureRequest) -> Verdict {
        let domains: SmallVec<[u32; 8]> = request.domains().iter().map(|domain| domain.0).collect();
        let view = view(request, &domains);
        let verdict = frame::enter(guard, request, |lock| {
            // SAFETY: the function's contract; lock, request and argument are valid while it runs.
            no_unwind(|| unsafe { (self.function)(lock, &view, self.arg) })
        });
        match verdict {
            FLEX_RETRY => Verdict::Retry,
            // As a callback in Rust fails: by unwinding to the caller of `allocate`. No panic hook runs.
            FLEX_FAIL => resume_unwind(Box::new(CALLBACK_FAILED)),
            _ => Verdict::GiveUp,
        }
    }
}

impl Drop for Callback {
    /// Runs the destructor, wherever the last use ends: never with the mutex held, never in a forked child.
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy
            && !is_forked()
        {
            // SAFETY: the function's contract; this is the last use of the argument.
            no_unwind(|| unsafe { destroy(self.arg) });
        }
    }
}

fn view(request: &PressureRequest, domains: &[u32]) -> FlexPressureRequest {
    FlexPressureRequest {
        requested_bytes: request.requested_bytes(),
        free_bytes: request.free_bytes(),
        largest_free_bytes: request.largest_free_bytes(),
        domains: domains.as_ptr(),
        domain_count: domains.len(),
        attempt: request.attempt(),
        cause: match request.cause() {
            PressureCause::Exhausted => FLEX_EXHAUSTED,
            PressureCause::Fragmented => FLEX_FRAGMENTED,
        },
    }
}

/// Calls foreign code and ends the process if it unwinds, rather than let it pass through frames that C++ does not
/// know.
fn no_unwind<R>(call: impl FnOnce() -> R) -> R {
    struct Abort;
    impl Drop for Abort {
        fn drop(&mut self) {
            eprintln!("flex: an exception left a callback of the C ABI; catch it inside and return a status");
            std::process::abort();
        }
    }
    let abort = Abort;
    let result = call();
    std::mem::forget(abort);
    result
}

/// Makes `callback` the memory-pressure callback of an allocator, with `arg` for every call. Null takes the callback
/// away; `arg` and `destroy` then mean nothing.
///
/// `destroy` may be null. Else it is called with `arg` once, after the last call of the callback has returned: at once
/// or later, on any thread, with no mutex held, but never in a forked child. If this function fails it is not called.
///
/// The callback may be replaced at any time, also while it runs: calls that run end with the old one. The previous
/// callback goes to `*previous`, to be put back with `flex_restore_pressure_callback`, called with `flex_lock_call`,
/// or given up with `flex_callback_release`; all 0 if there was none. If `previous` is null it is given up at once.
/// `*previous` is written, under the allocator mutex, before the new callback can be called, which may read it.
/// The devices of a Python process have one already, which collects garbage: keep it and call it.
///
/// # Safety
/// The functions are what their types say and, with `arg`, may be used from any thread, the callback by several at
/// once. `previous` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_set_pressure_callback(
    allocator: FlexAllocator,
    callback: FlexPressureCallback,
    arg: *mut c_void,
    destroy: FlexDestroy,
    previous: *mut FlexCallback,
) -> FlexStatus {
    guarded_unlocked(|| {
        // SAFETY: the caller's contract.
        let out = unsafe { Out::optional(previous, PREVIOUS) }?;
        let allocator = find(allocator)?;
        let callback =
            callback.map(|function| Arc::new(Callback { function, arg, destroy }) as SharedCallback);
        replace(&allocator, callback, out)
    })
}

const PREVIOUS: &std::ffi::CStr = c"previous is misaligned";

/// Puts a callback back that was taken out of this or another allocator; its handle is stale then. `previous` is as
/// for `flex_set_pressure_callback`.
///
/// # Safety
/// `previous` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_restore_pressure_callback(
    allocator: FlexAllocator,
    callback: FlexCallback,
    previous: *mut FlexCallback,
) -> FlexStatus {
    guarded_unlocked(|| {
        // SAFETY: the caller's contract.
        let out = unsafe { Out::optional(previous, PREVIOUS) }?;
        let allocator = find(allocator)?;
        replace(&allocator, Some(CALLBACKS.take(callback.id).ok_or(UNKNOWN)?), out)
    })
}

fn replace(
    allocator: &flex::FlexAllocator,
    callback: Option<SharedCallback>,
    out: Option<Out<FlexCallback>>,
) -> Result<(), Failure> {
    let Some(out) = out else {
        drop(allocator.set_memory_pressure_callback(callback)?);
        return Ok(());
    };
    let place = CALLBACKS.reserve()?;
    // Under the mutex, and a call begins under the mutex: the new callback finds its predecessor.
    allocator.exchange_memory_pressure_callback(callback, |previous| {
        let id = previous.map(|previous| place.fill(previous)).unwrap_or_default();
        out.write(FlexCallback { id });
    })?;
    Ok(())
}

/// Gives up a callback that was taken out of an allocator. Its argument is destroyed when no call of it runs any more.
#[unsafe(no_mangle)]
pub extern "C" fn flex_callback_release(callback: FlexCallback) -> FlexStatus {
    guarded(|| {
        frame::release(CALLBACKS.take(callback.id).ok_or(UNKNOWN)?);
        Ok(())
    })
}

/// Releases the allocator mutex, runs `body(arg)`, and takes the mutex again. Inside `body` everything is allowed: to
/// wait, to free, to allocate while there is room, to attach to an interpreter; `lock` is not valid there. Count on
/// nothing across it: other threads allocate and free meanwhile.
///
/// `FLEX_FORKED` if `body` has forked and this is the child; the mutex is left alone then.
///
/// # Safety
/// `lock` is what a callback was handed, or any other value (an error). `body` is null (an error) or what its type
/// says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_unlocked(lock: *mut FlexLock, body: FlexBody, arg: *mut c_void) -> FlexStatus {
    guarded(|| {
        let body = body.ok_or(Failure::invalid_argument(c"flex_unlocked: body is null"))?;
        frame::lend(lock, |guard, _| {
            // SAFETY: the function's contract.
            guard.unlocked(|_| no_unwind(|| unsafe { body(arg) }))
        })??;
        Ok(())
    })
}

/// A callback that is being called; if it was released meanwhile it ends when the mutex is free, also after a panic.
struct Borrowed(Option<SharedCallback>);

impl Drop for Borrowed {
    fn drop(&mut self) {
        frame::release(self.0.take());
    }
}

/// Calls a callback that was taken out of an allocator, with this lock and its request, and says what it answered.
/// `FLEX_CALLBACK_FAILED` if it failed.
///
/// # Safety
/// `lock` is what a callback was handed, or any other value (an error). `verdict` is null (an error) or valid for a
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_lock_call(
    lock: *mut FlexLock,
    callback: FlexCallback,
    verdict: *mut FlexVerdict,
) -> FlexStatus {
    guarded(|| {
        // SAFETY: the caller's contract.
        let out = unsafe { Out::new(verdict, c"flex_lock_call: verdict is null or misaligned") }?;
        let callback = Borrowed(CALLBACKS.with(callback.id, |callback| Arc::clone(callback)));
        let called = callback.0.as_ref().ok_or(UNKNOWN)?;
        out.write(match frame::lend(lock, |guard, request| called.on_pressure(guard, request))? {
            Verdict::Retry => FLEX_RETRY,
            Verdict::GiveUp => FLEX_GIVE_UP,
        });
        Ok(())
    })
}

/// Tries to serve the request now, without the mutex being released for it. Once it is served it stays so.
///
/// # Safety
/// `lock` is what a callback was handed, or any other value (an error). `served` is null (an error) or valid for a
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_lock_search(lock: *mut FlexLock, served: *mut bool) -> FlexStatus {
    guarded(|| {
        // SAFETY: the caller's contract.
        let out = unsafe { Out::new(served, c"flex_lock_search: served is null or misaligned") }?;
        out.write(frame::with(lock, |guard, request| guard.search(request))??);
        Ok(())
    })
}

/// From now on whoever frees memory serves this request before others that register later, until it ends.
///
/// # Safety
/// `lock` is what a callback was handed, or any other value (an error).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_lock_register(lock: *mut FlexLock) -> FlexStatus {
    guarded(|| Ok(frame::with(lock, |guard, request| guard.register(request, None))??))
}

/// The statistics of the allocator that is locked. Frees that are pending are done first, a batch at a time; between
/// two batches the mutex is free for a moment.
///
/// # Safety
/// `lock` is what a callback was handed, or any other value (an error). `statistics` is null (an error) or valid for a
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_lock_statistics(
    lock: *mut FlexLock,
    statistics: *mut FlexStatistics,
) -> FlexStatus {
    guarded(|| {
        // SAFETY: the caller's contract.
        let out = unsafe { Out::new(statistics, c"flex_lock_statistics: statistics is null or misaligned") }?;
        out.write(FlexStatistics::from(&frame::with(lock, |guard, _| guard.statistics())??));
        Ok(())
    })
}

/// Whether frees of other threads have begun and not finished: a search a little later may find more.
///
/// # Safety
/// `lock` is what a callback was handed, or any other value (an error). `in_flight` is null (an error) or valid for a
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_lock_frees_in_flight(lock: *mut FlexLock, in_flight: *mut bool) -> FlexStatus {
    guarded(|| {
        // SAFETY: the caller's contract.
        let out =
            unsafe { Out::new(in_flight, c"flex_lock_frees_in_flight: in_flight is null or misaligned") }?;
        out.write(frame::with(lock, |guard, _| guard.frees_in_flight())?);
        Ok(())
    })
}
