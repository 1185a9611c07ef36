//! The key-value cache of an inference server: sequences that grow by blocks of 64 KiB and end as a whole.

use super::random::Random;
use super::{Live, Trace, TraceBuilder};

const BLOCK_BYTES: u64 = 64 << 10;
const MOST_LIVE: usize = 20_000;
const SEQUENCES: usize = 64;

struct Sequence {
    blocks: Vec<Live>,
    /// It ends when it has so many blocks.
    final_blocks: usize,
}

pub(super) fn trace(seed: u64, pairs: usize) -> Trace {
    let mut random = Random::new(3, seed);
    let mut trace = TraceBuilder::default();
    let mut sequences: Vec<Sequence> = Vec::new();
    let mut live = 0;
    while trace.ops() < pairs * 2 {
        while live < MOST_LIVE && (sequences.len() < SEQUENCES || random.below(40) == 0) {
            let prompt_blocks = 8 + random.below(120) as usize;
            let blocks = (0..prompt_blocks).map(|_| trace.allocate(BLOCK_BYTES)).collect();
            live += prompt_blocks;
            let final_blocks = prompt_blocks + 8 + random.below(300) as usize;
            sequences.push(Sequence { blocks, final_blocks });
        }
        let chosen = random.below(sequences.len() as u64) as usize;
        let sequence = &mut sequences[chosen];
        if sequence.blocks.len() >= sequence.final_blocks || live >= MOST_LIVE {
            let ended = sequences.swap_remove(chosen);
            live -= ended.blocks.len();
            ended.blocks.into_iter().for_each(|block| trace.free(block));
        } else {
            sequence.blocks.push(trace.allocate(BLOCK_BYTES));
            live += 1;
        }
    }
    trace.finish()
}
