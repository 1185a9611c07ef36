//! Failures and delays that tests ask for.
//!
//! The plan is behind its own small mutex, held only to look at it; a hook runs with no lock held, so that it may
//! block for as long as a test likes.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flex::DeviceError;

/// How often a device has been called. One consistent count per field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Calls {
    /// Calls of `acquire_region`, the failed ones included.
    pub acquire: u64,
    /// Calls of `acquire_region` that failed.
    pub acquire_failed: u64,
    /// Calls of `release_region`, the failed ones included.
    pub release: u64,
    /// Calls of `release_region` that failed.
    pub release_failed: u64,
    /// Calls of `trim`.
    pub trim: u64,
}

/// Makes calls of one device fail or wait, and counts them.
///
/// ```
/// use flex::{Device, DomainId, MemoryType, Topology};
/// use flex_sim::SimulatedDevice;
///
/// let device = SimulatedDevice::for_topology(&Topology::uniform(1 << 20)?)?;
/// device.injection().fail_nth_acquire(1);
/// device.acquire_region(4096, DomainId(0), MemoryType::Tensor).unwrap_err();
/// device.acquire_region(4096, DomainId(0), MemoryType::Tensor)?;
/// assert_eq!(device.injection().calls().acquire_failed, 1);
/// # Ok::<(), flex::FlexError>(())
/// ```
#[derive(Debug, Default)]
pub struct Injection {
    plan: Mutex<Plan>,
    acquire: AtomicU64,
    acquire_failed: AtomicU64,
    release: AtomicU64,
    release_failed: AtomicU64,
    trim: AtomicU64,
}

#[derive(Default)]
struct Plan {
    /// The call of `acquire_region` to fail, counted as [`Calls::acquire`] is.
    fail_acquire: Option<u64>,
    fail_every_acquire: bool,
    fail_releases: u64,
    acquire_hook: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan")
            .field("fail_acquire", &self.fail_acquire)
            .field("fail_every_acquire", &self.fail_every_acquire)
            .field("fail_releases", &self.fail_releases)
            .field("acquire_hook", &self.acquire_hook.is_some())
            .finish()
    }
}

impl Injection {
    /// Fails one acquisition: the `n`th from now, counted from 1.
    pub fn fail_nth_acquire(&self, n: u64) {
        let calls = self.acquire.load(Ordering::Relaxed);
        self.plan().fail_acquire = Some(calls + n);
    }

    /// Fails every acquisition until told otherwise.
    pub fn fail_every_acquire(&self, fail: bool) {
        self.plan().fail_every_acquire = fail;
    }

    /// Fails the next `count` releases.
    pub fn fail_release(&self, count: u64) {
        self.plan().fail_releases = count;
    }

    /// Calls `hook` inside every acquisition, before anything is acquired and with no lock held: a hook that waits
    /// for an event of the test makes the acquisition slow.
    pub fn slow_acquire(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.plan().acquire_hook = Some(Arc::new(hook));
    }

    /// Removes the hook of [`Injection::slow_acquire`]. Calls that are in it stay there.
    pub fn clear_slow_acquire(&self) {
        // Dropped with the lock free: a hook's captures may run anything when dropped.
        let hook = self.plan().acquire_hook.take();
        drop(hook);
    }

    /// The calls so far.
    pub fn calls(&self) -> Calls {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Calls {
            acquire: load(&self.acquire),
            acquire_failed: load(&self.acquire_failed),
            release: load(&self.release),
            release_failed: load(&self.release_failed),
            trim: load(&self.trim),
        }
    }

    /// At the start of an acquisition.
    pub(crate) fn before_acquire(&self) -> Result<(), DeviceError> {
        let nth = self.acquire.fetch_add(1, Ordering::Relaxed) + 1;
        let (hook, fails) = {
            let mut plan = self.plan();
            let chosen = plan.fail_acquire == Some(nth);
            if chosen {
                plan.fail_acquire = None;
            }
            (plan.acquire_hook.clone(), chosen || plan.fail_every_acquire)
        };
        if let Some(hook) = hook {
            hook();
        }
        if fails { Err(DeviceError::Injected { operation: "acquire_region", nth }) } else { Ok(()) }
    }

    /// At the start of a release.
    pub(crate) fn before_release(&self) -> Result<(), DeviceError> {
        let nth = self.release.fetch_add(1, Ordering::Relaxed) + 1;
        let mut plan = self.plan();
        if plan.fail_releases == 0 {
            return Ok(());
        }
        plan.fail_releases -= 1;
        Err(DeviceError::Injected { operation: "release_region", nth })
    }

    pub(crate) fn count_failed_acquire(&self) {
        self.acquire_failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_failed_release(&self) {
        self.release_failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_trim(&self) {
        self.trim.fetch_add(1, Ordering::Relaxed);
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        // Nothing panics while holding it; if something did, the plan would still be whole.
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
