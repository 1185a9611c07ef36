//! When the ladder may collect, and how long it may take. Atomics: read at the start of each request, set any time.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
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
}

impl Policy {
    pub(super) fn new(settings: PolicySettings) -> Self {
        let policy = Policy {
            collect: AtomicU8::new(0),
            escalate: AtomicBool::new(false),
            timeout_ms: AtomicU64::new(0),
        };
        policy.set(settings);
        policy
    }

    pub(super) fn set(&self, settings: PolicySettings) {
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
