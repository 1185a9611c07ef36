//! One device, one gate, one fake interpreter.

#![allow(dead_code, unreachable_pub)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Scope;
use std::time::Duration;

use flex::gate::{Gate, PolicySettings};
use flex::pressure::{PressureStatistics, SkipReason};
use flex::{CompositeAddress, FlexAllocator, FlexError};

use crate::interpreter::{FakeInterpreter, PausedFinalizer};
use crate::support::*;

/// Size of most allocations: the device holds sixteen.
pub const BLOCK: u64 = 4 * KIB;
pub const BLOCKS: usize = 16;

pub struct World {
    pub allocator: FlexAllocator,
    pub gate: Arc<Gate>,
    pub interpreter: Arc<FakeInterpreter>,
    _watchdog: Watchdog,
}

impl World {
    pub fn new() -> World {
        World::with(PolicySettings { timeout: patience() * 3 / 4, ..PolicySettings::default() })
    }

    pub fn with_timeout(timeout: Duration) -> World {
        World::with(PolicySettings { timeout, ..PolicySettings::default() })
    }

    pub fn with(settings: PolicySettings) -> World {
        let interpreter = Arc::new(FakeInterpreter::default());
        let gate = Gate::new(interpreter.clone(), settings);
        let allocator = allocator(BLOCKS as u64 * BLOCK);
        allocator.set_memory_pressure_callback(Some(gate.ladder())).unwrap();
        World { allocator, gate, interpreter, _watchdog: watchdog() }
    }

    /// Fills what is left of the device.
    pub fn fill(&self) -> Vec<CompositeAddress> {
        let free_bytes = self.allocator.statistics().unwrap().free_bytes;
        allocate_many(&self.allocator, (free_bytes / BLOCK) as usize, BLOCK)
    }

    /// Fills the device with garbage in one layer.
    pub fn fill_with_garbage(&self) {
        self.interpreter.add_garbage(self.fill());
    }

    pub fn allocate(&self) -> Result<CompositeAddress, FlexError> {
        allocate(&self.allocator, BLOCK)
    }

    pub fn pressure(&self) -> PressureStatistics {
        self.allocator.pressure_statistics()
    }

    pub fn skipped(&self, reason: SkipReason) -> u64 {
        let index = SkipReason::ALL.iter().position(|known| *known == reason).unwrap();
        self.pressure().skipped[index]
    }

    /// Waits until so many requests have failed their first search.
    pub fn wait_for_events(&self, count: u64) {
        let end = std::time::Instant::now() + patience();
        while self.pressure().events < count {
            assert!(std::time::Instant::now() < end, "{count} events");
            std::thread::yield_now();
        }
    }

    /// Waits until so many full collections have been counted.
    pub fn wait_for_collections(&self, count: u64) {
        let end = std::time::Instant::now() + patience();
        while self.pressure().full_collections < count {
            assert!(std::time::Instant::now() < end, "{count} collections");
            std::thread::yield_now();
        }
    }

    /// A collection of the program's own, on a thread of its own, that stands still in a finalizer.
    pub fn paused_program_collection<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
    ) -> PausedFinalizer {
        let finalizer = self.interpreter.pause_in_finalizer();
        scope.spawn(move || self.interpreter.python_thread(|| self.interpreter.user_collect()));
        wait(&finalizer.entered);
        finalizer
    }

    /// Events, rescued, failed.
    pub fn events(&self) -> (u64, u64, u64) {
        let pressure = self.pressure();
        (pressure.events, pressure.rescued, pressure.failed)
    }

    /// Young and full collections, as the device counted them.
    pub fn collections(&self) -> (u64, u64) {
        let pressure = self.pressure();
        (pressure.young_collections, pressure.full_collections)
    }

    pub fn collector_threads(&self) -> usize {
        self.interpreter.collector_threads.load(Ordering::SeqCst)
    }
}

impl Drop for World {
    /// Every event has ended, nothing is left behind, and collector threads end.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        drop(self.interpreter.take_garbage());
        check(&self.allocator, 0);
        self.gate.close();
        self.allocator.set_memory_pressure_callback(None).unwrap();
    }
}

pub fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::SeqCst)
}
