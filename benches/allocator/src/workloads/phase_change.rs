//! A change of phase: the memory is full of small blocks, then of large ones, with a few of the small ones left over.
//! What a freed small block leaves behind must be of use for large ones.

use super::random::Random;
use super::{Live, Trace, TraceBuilder};

const LIVE_BYTES: u64 = 1 << 30;
const SMALL_BYTES: (u64, u64) = (128, 256 << 10);
const LARGE_BYTES: (u64, u64) = (1 << 20, 32 << 20);
const SMALL_REPLACEMENTS: usize = 10_000;
const LARGE_REPLACEMENTS: usize = 3_000;
/// One of so many small blocks lives to the end.
const SURVIVORS: usize = 100;

pub(super) fn trace(seed: u64) -> Trace {
    let mut random = Random::new(4, seed);
    let mut trace = TraceBuilder::default();
    let mut small = Vec::new();
    while trace.live_bytes() < LIVE_BYTES {
        small.push(trace.allocate(random.log_uniform(SMALL_BYTES.0, SMALL_BYTES.1)));
    }
    for _ in 0..SMALL_REPLACEMENTS {
        trace.free(random.take(&mut small));
        small.push(trace.allocate(random.log_uniform(SMALL_BYTES.0, SMALL_BYTES.1)));
    }
    let keep = small.len() / SURVIVORS;
    let mut large = Vec::new();
    while small.len() > keep {
        add_large(&mut trace, &mut random, &mut small, &mut large);
    }
    for _ in 0..LARGE_REPLACEMENTS {
        trace.free(random.take(&mut large));
        let mut none = Vec::new();
        add_large(&mut trace, &mut random, &mut none, &mut large);
    }
    trace.finish()
}

/// Frees small blocks, then large ones, until there is room for another large one.
fn add_large(trace: &mut TraceBuilder, random: &mut Random, small: &mut Vec<Live>, large: &mut Vec<Live>) {
    let bytes = random.log_uniform(LARGE_BYTES.0, LARGE_BYTES.1);
    while trace.live_bytes() + bytes > LIVE_BYTES {
        let victims = if small.is_empty() { &mut *large } else { &mut *small };
        if victims.is_empty() {
            break;
        }
        trace.free(random.take(victims));
    }
    large.push(trace.allocate(bytes));
}
