//! Wide mix: a constant number of live blocks, log-uniform from 128 bytes to 64 MiB, replaced at random.

use super::random::Random;
use super::{Trace, TraceBuilder};

pub(super) fn trace(seed: u64, live_blocks: usize, replacements: usize) -> Trace {
    let mut random = Random::new(1, seed);
    let mut trace = TraceBuilder::default();
    let mut live: Vec<_> =
        (0..live_blocks).map(|_| trace.allocate(random.log_uniform(128, 64 << 20))).collect();
    for _ in 0..replacements {
        trace.free(random.take(&mut live));
        live.push(trace.allocate(random.log_uniform(128, 64 << 20)));
    }
    trace.finish()
}
