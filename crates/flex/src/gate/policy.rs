//! When the ladder may collect, and how long it may take. Atomics, read at the start of each request. Lock: `changing`,
//! a leaf, for those who change them.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// When pressure may run the collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CollectPolicy {
    /// Always, also while the program has disabled its automatic collector.
    #[default]
    Always,
    /// Only while the program's automatic collector is enabled.
    RespectDisable,
    /// Never.
    Off,
}

/// The settings of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicySettings {
    /// When to collect.
    pub collect: CollectPolicy,
    /// Try the young generations before a full collection.
    pub escalate: bool,
    /// One deadline for all the waiting of a request.
    pub timeout: Duration,
}

impl Default for PolicySettings {
    fn default() -> Self {
        PolicySettings { collect: CollectPolicy::Always, escalate: true, timeout: Duration::from_secs(10) }
    }
}

/// The settings, shared.
#[derive(Debug)]
pub(super) struct Policy {
    collect: AtomicU8,
    escalate: AtomicBool,
    timeout_ms: AtomicU64,
    changing: Mutex<()>,
}

impl Policy {
    pub(super) fn new(settings: PolicySettings) -> Self {
        let policy = Policy {
            collect: AtomicU8::new(0),
            escalate: AtomicBool::new(false),
            timeout_ms: AtomicU64::new(0),
            changing: Mutex::new(()),
        };
        policy.set(settings);
        policy
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut PolicySettings)) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut settings = self.get();
        change(&mut settings);
        self.set(settings);
    }

    fn set(&self, settings: PolicySettings) {
        self.collect.store(settings.collect as u8, Ordering::Relaxed);
        self.escalate.store(settings.escalate, Ordering::Relaxed);
        let milliseconds = u64::try_from(settings.timeout.as_millis()).unwrap_or(u64::MAX);
        self.timeout_ms.store(milliseconds, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> PolicySettings {
        let collect = match self.collect.load(Ordering::Relaxed) {
            value if value == CollectPolicy::Off as u8 => CollectPolicy::Off,
            value if value == CollectPolicy::RespectDisable as u8 => CollectPolicy::RespectDisable,
            _ => CollectPolicy::Always,
        };
        PolicySettings {
            collect,
            escalate: self.escalate.load(Ordering::Relaxed),
            timeout: Duration::from_millis(self.timeout_ms.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn changes_of_different_settings_at_the_same_time_are_all_kept() {
        let policy = Policy::new(PolicySettings::default());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for milliseconds in 1..=10_000 {
                    policy.update(|settings| settings.timeout = Duration::from_millis(milliseconds));
                    assert_eq!(policy.get().timeout, Duration::from_millis(milliseconds));
                }
            });
            for turn in 0..10_000 {
                policy.update(|settings| settings.escalate = turn % 2 == 0);
                assert_eq!(policy.get().escalate, turn % 2 == 0);
            }
        });
    }
}
