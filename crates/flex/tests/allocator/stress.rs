//! Threads that allocate, hand allocations to each other and free them, under pressure, with every byte of every
//! live block checked for being its owner's alone.
//!
//! `FLEX_STRESS_SEED` repeats a run, as far as threads can.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use flex::pressure::Verdict;
use flex::{Chunk, CompositeAddress, Device, FlexAllocator, FlexError};
use flex_sim::SimulatedDevice;

use crate::support::*;

const THREADS: usize = 4;
const STEPS: u64 = 4_000;

/// A small random number generator: xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % limit
    }
}

fn seed() -> u64 {
    let given = std::env::var("FLEX_STRESS_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |since| since.as_nanos() as u64 | 1)
    })
}

/// An allocation whose every byte says whose it is.
struct Stamped {
    allocation: CompositeAddress,
    stamp: u64,
}

impl Stamped {
    fn new(device: &SimulatedDevice, allocation: CompositeAddress, stamp: u64) -> Self {
        for chunk in allocation.chunks() {
            device.copy_in(chunk.address, &Stamped::content(&chunk, stamp)).unwrap();
        }
        Stamped { allocation, stamp }
    }

    fn content(chunk: &Chunk, stamp: u64) -> Vec<u8> {
        stamp.to_le_bytes().repeat((chunk.size_bytes / 8) as usize)
    }

    fn check(&self, device: &SimulatedDevice) {
        for chunk in self.allocation.chunks() {
            let mut content = vec![0; chunk.size_bytes as usize];
            device.copy_out(chunk.address, &mut content).unwrap();
            assert!(
                content == Stamped::content(&chunk, self.stamp),
                "{chunk:?} was written by somebody else"
            );
        }
    }
}

struct Worker<'a> {
    allocator: &'a FlexAllocator,
    device: &'a SimulatedDevice,
    stamps: &'a AtomicU64,
    random: Random,
    live: Vec<Stamped>,
    next: mpsc::Sender<Stamped>,
    received: mpsc::Receiver<Stamped>,
    exhausted: u64,
}

impl Worker<'_> {
    fn run(mut self) -> u64 {
        for _ in 0..STEPS {
            match self.random.below(100) {
                0..45 => self.allocate(),
                45..75 => drop(self.pick()),
                75..95 => {
                    if let Some(picked) = self.pick() {
                        // The neighbour may have ended; the allocation is freed here then.
                        let _ = self.next.send(picked);
                    }
                }
                95..98 => self.receive(),
                98 => self.allocator.validate().unwrap(),
                _ => assert!(self.allocator.empty_cache().is_ok()),
            }
        }
        let Worker { next, received, live, device, exhausted, .. } = self;
        drop(next);
        live.into_iter().chain(received).for_each(|stamped| stamped.check(device));
        exhausted
    }

    fn allocate(&mut self) {
        let bytes = 1 + self.random.below(8 * KIB);
        let directive = match self.random.below(4) {
            0 => interleaved(&[0, 1]),
            1 => bound(1),
            _ => bound(0),
        };
        match self.allocator.allocate(bytes, &directive) {
            Ok(allocation) => {
                let stamp = self.stamps.fetch_add(1, Ordering::Relaxed);
                self.live.push(Stamped::new(self.device, allocation, stamp));
            }
            Err(FlexError::OutOfMemory(_)) => {
                self.exhausted += 1;
                self.live.truncate(self.live.len() / 2);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn pick(&mut self) -> Option<Stamped> {
        let count = self.live.len() as u64;
        let picked = (count > 0).then(|| self.live.swap_remove(self.random.below(count) as usize))?;
        picked.check(self.device);
        Some(picked)
    }

    fn receive(&mut self) {
        let received: Vec<_> = self.received.try_iter().collect();
        for stamped in received {
            stamped.check(self.device);
            if self.random.below(4) == 0 {
                self.live.push(stamped);
            }
        }
    }
}

fn workers<'a>(
    seed: u64,
    allocator: &'a FlexAllocator,
    device: &'a SimulatedDevice,
    stamps: &'a AtomicU64,
) -> Vec<Worker<'a>> {
    let (mut senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
    senders.rotate_left(1);
    let channels = senders.into_iter().zip(receivers).zip(1..);
    channels
        .map(|((next, received), number)| Worker {
            allocator,
            device,
            stamps,
            random: Random(seed.wrapping_mul(number) | 1),
            live: Vec::new(),
            next,
            received,
            exhausted: 0,
        })
        .collect()
}

#[test]
fn threads_never_share_a_byte_and_leave_nothing_behind() {
    let _watchdog = watchdog();
    let seed = seed();
    println!("FLEX_STRESS_SEED={seed}");
    let regions = [(0, 128 * KIB), (0, 64 * KIB), (1, 96 * KIB), (1, 32 * KIB)];
    let (allocator, device) = on_device(&tensor_regions(&regions));
    let calls = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&calls);
    set_callback(&allocator, move |guard, request| {
        count.fetch_add(1, Ordering::Relaxed);
        guard.register(request, None).unwrap();
        guard.unlocked(|_| thread::yield_now()).unwrap();
        if request.attempt() < 3 { Verdict::Retry } else { Verdict::GiveUp }
    });
    let (stamps, start) = (AtomicU64::new(1), Barrier::new(THREADS));
    let exhausted: u64 = thread::scope(|scope| {
        let workers = workers(seed, &allocator, &device, &stamps).into_iter();
        let start = &start;
        let running: Vec<_> = workers
            .map(|worker| {
                scope.spawn(move || {
                    start.wait();
                    worker.run()
                })
            })
            .collect();
        running.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    check(&allocator, 0);
    let statistics = allocator.statistics().unwrap();
    assert_eq!(statistics.requested_bytes.current + statistics.allocation.current, 0);
    assert_eq!(statistics.num_ooms, exhausted);
    assert_eq!(allocator.pressure_statistics().failed, exhausted);
    assert!(calls.load(Ordering::Relaxed) > 0, "it was under pressure");
    assert_eq!(statistics.allocated_bytes.allocated, statistics.allocated_bytes.freed);
    allocator.set_memory_pressure_callback(None).unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(device.acquired_bytes(), 0);
}
