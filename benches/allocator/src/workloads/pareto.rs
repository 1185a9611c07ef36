//! Pareto lifetimes: most blocks die young, some live for very long. Sizes are log-uniform from 128 bytes to 16 MiB.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::random::Random;
use super::{Live, Trace, TraceBuilder};

/// The shortest lifetime, in allocations.
const SCALE: f64 = 200.0;
const SHAPE: f64 = 0.9;
const LONGEST: u64 = 40_000;

pub(super) fn trace(seed: u64, allocations: u64) -> Trace {
    let mut random = Random::new(2, seed);
    let mut trace = TraceBuilder::default();
    let mut ends = BinaryHeap::new();
    let mut blocks: Vec<Live> = Vec::new();
    for now in 0..allocations {
        while let Some(&Reverse((end, index))) = ends.peek()
            && end <= now
        {
            ends.pop();
            trace.free(blocks[index]);
        }
        let lifetime = (SCALE / (1.0 - random.unit()).powf(SHAPE)).min(LONGEST as f64) as u64;
        ends.push(Reverse((now + lifetime, blocks.len())));
        blocks.push(trace.allocate(random.log_uniform(128, 16 << 20)));
    }
    trace.finish()
}
