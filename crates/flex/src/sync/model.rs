//! The same names, as the model checkers want them, with a clock that the models move.
//!
//! The checkers' timed waits never expire and they know no time, so both are made here. Time stands still until
//! [`let_time_pass`] lets it run on; from then on every timed wait expires at once and moves the clock of the thread
//! that waits by its length. A model calls that from a thread of its own, so that expiry may come between any two steps
//! of the others. It wakes nobody: the model notifies the sleepers under their mutex afterwards. Where polling is to
//! make progress while deadlines hold, [`set_step`] makes short waits expire from the beginning.
//!
//! Each thread has its own clock once time passes: a thread may see a deadline of another one as later than it is,
//! as it would if that one had begun later.

// Each checker uses a part.
#![allow(dead_code)]

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};
use std::time::{Duration, Instant};

#[cfg(loom)]
pub(crate) use loom as checker;
#[cfg(all(shuttle, not(loom)))]
pub(crate) use shuttle as checker;

/// The checkers' macros do not take all that std's takes.
macro_rules! checked_thread_local {
    ($($vis:vis static $name:ident: $type:ty = const { $init:expr };)*) => {
        $($crate::sync::model::checker::thread_local! { $vis static $name: $type = $init })*
    };
}
pub(crate) use checked_thread_local as thread_local;

/// For what the last of several threads drops, where the models must see that the others are done with it.
pub(crate) use checker::sync::Arc;

pub(crate) mod atomic {
    pub(crate) use super::checker::sync::atomic::{
        AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

/// As std's, in memory that is there at once.
pub(crate) fn zeroed<const WORDS: usize>(slots: usize) -> Option<Box<[[atomic::AtomicU64; WORDS]]>> {
    let slot = || std::array::from_fn(|_| atomic::AtomicU64::new(0));
    Some(std::iter::repeat_with(slot).take(slots).collect())
}

pub(crate) mod barrier {
    //! In the models both are full: which of them the kernel passes for the other is not modelled.

    use super::checker::sync::atomic::{Ordering, fence};

    pub(crate) fn prepare() {}

    pub(crate) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
    }
}

/// What `sync` says of it, unless a mutant reads plainly; see [`with_plain_reads`].
pub(crate) fn newest(value: &atomic::AtomicU32) -> u32 {
    use atomic::Ordering;
    if PLAIN_READS.get() {
        return value.load(Ordering::Relaxed);
    }
    value.compare_exchange(0, 0, Ordering::AcqRel, Ordering::Relaxed).unwrap_or_else(|value| value)
}

std::thread_local! {
    // A model runs all its threads as coroutines of the thread that runs the test.
    static PLAIN_READS: Cell<bool> = const { Cell::new(false) };
    static STEP: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static BEGINNING: Instant = Instant::now();
    static SPAWNED: RefCell<Vec<checker::thread::JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
}

checked_thread_local! {
    static ELAPSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

checker::lazy_static! {
    static ref TIME_PASSES: atomic::AtomicBool = atomic::AtomicBool::new(false);
}

/// Longer than any timeout that was set before.
const A_LONG_TIME: Duration = Duration::from_secs(1 << 40);

/// Explores every execution of a model, or those with at most so many preemptions, which `FLEX_MORE_PREEMPTIONS` adds
/// to. Says how many there were.
#[cfg(loom)]
pub(crate) fn check(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    let more = std::env::var("FLEX_MORE_PREEMPTIONS").ok();
    let more: usize = more.map_or(0, |text| text.parse().expect("FLEX_MORE_PREEMPTIONS is a number"));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.map(|bound| bound + more);
    builder.max_branches = 10_000;
    let executions = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&executions);
    builder.check(move || {
        count.fetch_add(1, atomic::Ordering::Relaxed);
        thread::to_its_end(&model);
    });
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    println!("{name}: {executions:?} executions, preemptions at most {:?}", builder.preemption_bound);
}

/// Runs a mutant: the code with a plain read in place of [`newest`], to see that its model would notice.
pub(crate) fn with_plain_reads<R>(body: impl FnOnce() -> R) -> R {
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            PLAIN_READS.set(false);
        }
    }
    PLAIN_READS.set(true);
    let _restore = Restore;
    body()
}

/// Waits of at most this length expire at once, in all executions of this model.
pub(crate) fn set_step(step: Duration) {
    STEP.set(step);
}

/// From now on every timed wait that begins expires at once, and every deadline set so far has passed.
pub(crate) fn let_time_pass() {
    TIME_PASSES.store(true, atomic::Ordering::SeqCst);
}

/// The time, as this thread sees it.
pub(crate) fn now() -> Instant {
    let passed = if TIME_PASSES.load(atomic::Ordering::SeqCst) { A_LONG_TIME } else { Duration::ZERO };
    BEGINNING.with(|beginning| *beginning) + passed + ELAPSED.with(Cell::get)
}

fn elapse(time: Duration) {
    ELAPSED.with(|elapsed| elapsed.set(elapsed.get() + time));
}

/// Calls `body`. Unwinding is tested without models: the checkers need panics for themselves.
pub(crate) fn catch_unwind<R>(body: impl FnOnce() -> R) -> std::thread::Result<R> {
    Ok(body())
}

/// A mutex whose release is a step of its own. In loom it is none, so that a `try_lock` would never come between the
/// last step of a critical section and its end.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T> {
    releases: atomic::AtomicUsize,
    inner: checker::sync::Mutex<T>,
}

pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` only while it is taken apart.
    inner: Option<checker::sync::MutexGuard<'a, T>>,
}

fn wrap<'a, T>(
    mutex: &'a Mutex<T>,
    result: LockResult<checker::sync::MutexGuard<'a, T>>,
) -> LockResult<MutexGuard<'a, T>> {
    let wrap = |inner| MutexGuard { mutex, inner: Some(inner) };
    result.map(wrap).map_err(|poisoned| PoisonError::new(wrap(poisoned.into_inner())))
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex { releases: atomic::AtomicUsize::new(0), inner: checker::sync::Mutex::new(value) }
    }

    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        wrap(self, self.inner.lock())
    }

    pub(crate) fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        self.step();
        match self.inner.try_lock() {
            Ok(inner) => Ok(MutexGuard { mutex: self, inner: Some(inner) }),
            Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
            Err(TryLockError::Poisoned(poisoned)) => {
                wrap(self, Err(poisoned)).map_err(TryLockError::Poisoned)
            }
        }
    }

    pub(crate) fn get_mut(&mut self) -> LockResult<&mut T> {
        self.inner.get_mut()
    }

    /// Orders attempts and releases among each other, and nothing else.
    fn step(&self) {
        self.releases.fetch_add(1, atomic::Ordering::Relaxed);
    }
}

impl<'a, T> MutexGuard<'a, T> {
    fn into_inner(mut self) -> checker::sync::MutexGuard<'a, T> {
        self.mutex.step();
        self.inner.take().expect("a guard is whole")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        if self.inner.is_some() && !std::thread::panicking() {
            self.mutex.step();
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_deref().expect("a guard is whole")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_deref_mut().expect("a guard is whole")
    }
}

/// A condition variable whose timed waits expire when the model says so.
#[derive(Debug, Default)]
pub(crate) struct Condvar(checker::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Condvar(checker::sync::Condvar::new())
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let mutex = guard.mutex;
        wrap(mutex, self.0.wait(guard.into_inner()))
    }

    /// The second value, whether it expired, is as little use as std's.
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, ())> {
        if timeout <= STEP.get() || TIME_PASSES.load(atomic::Ordering::SeqCst) {
            elapse(timeout);
            checker::thread::yield_now();
            return Ok((guard, ()));
        }
        match self.wait(guard) {
            Ok(guard) => Ok((guard, ())),
            Err(poisoned) => Err(PoisonError::new((poisoned.into_inner(), ()))),
        }
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

pub(crate) mod thread {
    //! Threads that are remembered until the model joins them, and end as the system's do: with the mutex of their
    //! magazines' allocators still at hand. The checkers destroy thread-locals when others can no longer be used.

    use super::{Duration, SPAWNED, checker, elapse};

    pub(crate) use checker::thread::{JoinHandle, yield_now};

    pub(crate) fn spawn<R: Send + 'static>(body: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R> {
        checker::thread::spawn(move || to_its_end(body))
    }

    /// Runs a whole thread, the model's first one too.
    pub(crate) fn to_its_end<R>(body: impl FnOnce() -> R) -> R {
        let result = body();
        crate::magazines::thread::end();
        result
    }

    pub(crate) fn sleep(time: Duration) {
        elapse(time);
        yield_now();
    }

    pub(crate) struct Builder(checker::thread::Builder);

    impl Builder {
        pub(crate) fn new() -> Self {
            Builder(checker::thread::Builder::new())
        }

        pub(crate) fn name(self, name: String) -> Self {
            Builder(self.0.name(name))
        }

        /// The checkers choose the size.
        pub(crate) fn stack_size(self, _size: usize) -> Self {
            self
        }

        /// Nobody keeps the handles of these threads but the model.
        pub(crate) fn spawn(self, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
            let handle = self.0.spawn(move || to_its_end(body))?;
            SPAWNED.with_borrow_mut(|spawned| spawned.push(handle));
            Ok(())
        }
    }

    /// Joins every thread that a builder spawned. The checkers report one that never ends as a deadlock.
    pub(crate) fn join_spawned() {
        while let Some(handle) = SPAWNED.with_borrow_mut(Vec::pop) {
            handle.join().expect("a spawned thread ends");
        }
    }
}
