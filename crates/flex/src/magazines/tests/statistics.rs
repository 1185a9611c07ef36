//! Statistics with magazines: exact for one thread, complete for several.

use std::sync::mpsc;
use std::thread;

use proptest::prelude::*;

use super::{KIB, allocate, allocator, assert_empty, occupied_blocks, owned, warm};
use crate::{ALIGNMENT_BYTES, Stat};

/// What one thread did, without magazines.
#[derive(Default)]
struct Expected {
    allocated_bytes: Stat,
    requested_bytes: Stat,
    allocation: Stat,
}

impl Expected {
    fn place(&mut self, bytes: u64) {
        self.allocated_bytes.increase(bytes.next_multiple_of(ALIGNMENT_BYTES));
        self.requested_bytes.increase(bytes);
        self.allocation.increase(1);
    }

    fn free(&mut self, bytes: u64) {
        self.allocated_bytes.decrease(bytes.next_multiple_of(ALIGNMENT_BYTES));
        self.requested_bytes.decrease(bytes);
        self.allocation.decrease(1);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Allocate(u64),
    Free(usize),
    Check,
    ResetPeak,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Few sizes, so that magazines serve most requests; some are too large for them.
    let size = prop_oneof![Just(100), Just(128), Just(1000), Just(64 * KIB), 1..300 * KIB];
    let step = prop_oneof![
        8 => size.prop_map(Step::Allocate),
        8 => any::<usize>().prop_map(Step::Free),
        1 => Just(Step::Check),
        1 => Just(Step::ResetPeak),
    ];
    prop::collection::vec(step, 0..300)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn the_statistics_of_one_thread_are_exact(steps in steps()) {
        let allocator = allocator(1 << 30);
        let (mut live, mut expected) = (Vec::new(), Expected::default());
        for step in steps.into_iter().chain([Step::Check]) {
            match step {
                Step::Allocate(bytes) => {
                    expected.place(bytes);
                    live.push(owned(&allocator, bytes));
                }
                Step::Free(pick) if !live.is_empty() => {
                    let block = live.swap_remove(pick % live.len());
                    expected.free(block.requested_bytes());
                }
                Step::Free(_) => {}
                Step::ResetPeak => {
                    allocator.reset_peak_statistics().unwrap();
                    expected.allocated_bytes.reset_peak();
                    expected.requested_bytes.reset_peak();
                    expected.allocation.reset_peak();
                }
                Step::Check => {
                    allocator.validate().unwrap();
                    let statistics = allocator.statistics().unwrap();
                    prop_assert_eq!(statistics.allocated_bytes, expected.allocated_bytes);
                    prop_assert_eq!(statistics.requested_bytes, expected.requested_bytes);
                    prop_assert_eq!(statistics.allocation, expected.allocation);
                    let blocks = allocator.snapshot().unwrap().into_iter().flat_map(|region| region.blocks);
                    let requested: u64 = blocks.map(|block| block.requested_bytes).sum();
                    prop_assert_eq!(requested, expected.requested_bytes.current);
                }
            }
        }
        live.clear();
        assert_empty(&allocator);
    }
}

#[test]
fn a_block_on_its_way_back_is_free() {
    let allocator = allocator(1 << 20);
    warm(&allocator);
    let block = allocate(&allocator, 1000);
    allocator.free_block(block.0).unwrap();
    let mut taken = Vec::new();
    let magazines = allocator.shared().lock().unwrap().state().unwrap().magazines.clone();
    magazines.iter().for_each(|magazine| magazine.take_back(&mut taken, usize::MAX));
    assert_eq!(taken.len(), 1);
    let statistics = allocator.statistics().unwrap();
    assert_eq!((statistics.allocated_bytes.current, statistics.free_bytes), (0, statistics.capacity_bytes));
    assert_eq!(occupied_blocks(&allocator), 1);
    allocator.shared().give_back(&taken);
    assert_empty(&allocator);
}

#[test]
fn threads_free_each_others_blocks_and_nothing_is_lost() {
    const ROUNDS: usize = 300;
    let allocator = allocator(4 << 20);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| mpsc::sync_channel(4)).unzip();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (thread, (sender, receiver)) in senders.iter().cycle().skip(1).zip(receivers).enumerate() {
            let (sender, allocator) = (sender.clone(), &allocator);
            threads.push(scope.spawn(move || {
                for round in 0..ROUNDS {
                    let sizes = (0..24_u64).map(|k| 100 + 700 * ((k + round as u64) % 5));
                    let blocks: Vec<_> = sizes.map(|bytes| owned(allocator, bytes)).collect();
                    let _ = sender.send(blocks);
                    drop(receiver.recv());
                    if round % 50 == thread {
                        allocator.validate().unwrap();
                        allocator.statistics().unwrap();
                    }
                }
            }));
        }
        // A scope waits for what its threads run, not for the end of their thread-locals.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let statistics = allocator.statistics().unwrap();
    assert_eq!(statistics.allocation.allocated, (3 * ROUNDS * 24) as u64);
    assert_empty(&allocator);
}
