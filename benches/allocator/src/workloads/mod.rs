//! What is allocated and freed: traces made by generators with fixed seeds, MiniMalloc's instances, and real programs.
//!
//! A trace ends with everything freed, so that it can be played again on the same allocator.

mod folder;
mod kv_cache;
pub(crate) mod minimalloc;
mod mix;
mod pareto;
mod phase_change;
mod random;
pub(crate) mod snapshots;
mod training;

use anyhow::Result;

use crate::peers::UNIT_BYTES;

/// One step of a trace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    /// Which of the places for live blocks.
    pub(crate) place: u32,
    /// The size to allocate, in units; 0 to free the block in the place.
    pub(crate) size_units: u32,
}

/// A sequence of allocations and frees.
#[derive(Debug, Clone)]
pub(crate) struct Trace {
    pub(crate) ops: Vec<Op>,
    /// Places for live blocks that the trace uses.
    pub(crate) places: usize,
    /// The most that is live at once, in units.
    pub(crate) peak_units: u64,
}

impl Trace {
    /// Allocations, each with its free.
    pub(crate) fn pairs(&self) -> usize {
        self.ops.len() / 2
    }

    /// Room enough that no allocator should refuse anything, but for those that must round up.
    pub(crate) fn ample_units(&self) -> u64 {
        self.peak_units * 2
    }
}

/// Names a live block while a trace is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Live {
    place: u32,
    size_units: u32,
}

impl Live {
    fn size_bytes(self) -> u64 {
        u64::from(self.size_units) * UNIT_BYTES
    }
}

/// Makes a trace.
#[derive(Debug, Default)]
pub(crate) struct TraceBuilder {
    ops: Vec<Op>,
    live: Vec<Option<u32>>,
    vacant: Vec<u32>,
    live_units: u64,
    peak_units: u64,
}

impl TraceBuilder {
    pub(crate) fn allocate(&mut self, bytes: u64) -> Live {
        let size_units =
            u32::try_from(bytes.div_ceil(UNIT_BYTES).max(1)).expect("a size of 32 bits in units");
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.live.push(None);
            (self.live.len() - 1) as u32
        });
        self.live[place as usize] = Some(size_units);
        self.live_units += u64::from(size_units);
        self.peak_units = self.peak_units.max(self.live_units);
        self.ops.push(Op { place, size_units });
        Live { place, size_units }
    }

    pub(crate) fn free(&mut self, block: Live) {
        let size_units = self.live[block.place as usize].take().expect("a live block");
        self.live_units -= u64::from(size_units);
        self.vacant.push(block.place);
        self.ops.push(Op { place: block.place, size_units: 0 });
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_units * UNIT_BYTES
    }

    pub(crate) fn ops(&self) -> usize {
        self.ops.len()
    }

    /// Frees what is left.
    pub(crate) fn finish(mut self) -> Trace {
        for (place, live) in (0..).zip(&mut self.live) {
            if live.take().is_some() {
                self.ops.push(Op { place, size_units: 0 });
            }
        }
        Trace { ops: self.ops, places: self.live.len(), peak_units: self.peak_units }
    }
}

/// What is played. All but the last are generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Workload {
    /// Transformer training with varying batch sizes and sequence lengths.
    Train,
    /// A key-value cache in blocks of 64 KiB.
    Kv,
    /// Many live blocks of all sizes, replaced at random.
    Mix,
    /// Sizes of all magnitudes, lifetimes by a Pareto distribution.
    Pareto,
    /// Mostly small blocks, then mostly large ones.
    Phase,
    /// Real PyTorch programs, one after the other.
    Snapshots,
}

impl Workload {
    /// The workloads that time is measured on.
    pub(crate) const TIMED: [Workload; 5] =
        [Workload::Train, Workload::Kv, Workload::Mix, Workload::Pareto, Workload::Snapshots];

    /// The workloads that instructions are held against the baselines on, and of which the worst makes a ratio.
    pub(crate) const GENERATED: [Workload; 4] =
        [Workload::Train, Workload::Kv, Workload::Mix, Workload::Pareto];

    /// The generated workloads that packing is measured on.
    pub(crate) const PACKED: [Workload; 4] =
        [Workload::Train, Workload::Mix, Workload::Pareto, Workload::Phase];

    /// As the keys of the summary have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::Train => "train",
            Workload::Kv => "kv",
            Workload::Mix => "mix",
            Workload::Pareto => "pareto",
            Workload::Phase => "phase",
            Workload::Snapshots => "snapshots",
        }
    }

    /// A trace of some ten thousand pairs, to measure time on.
    ///
    /// # Errors
    ///
    /// The files of real traces are missing or wrong.
    pub(crate) fn long(self) -> Result<Trace> {
        const SEED: u64 = 1;
        Ok(match self {
            Workload::Train => training::trace(SEED, 20),
            Workload::Kv => kv_cache::trace(SEED, 60_000),
            Workload::Mix => mix::trace(SEED, 10_000, 40_000),
            Workload::Pareto => pareto::trace(SEED, 50_000),
            Workload::Phase => phase_change::trace(SEED),
            Workload::Snapshots => snapshots::together()?,
        })
    }

    /// A shorter trace, to be played many times for one figure of packing.
    ///
    /// # Panics
    ///
    /// The workload is not generated.
    pub(crate) fn short(self, seed: u64) -> Trace {
        match self {
            Workload::Train => training::trace(seed, 10),
            Workload::Kv => kv_cache::trace(seed, 20_000),
            Workload::Mix => mix::trace(seed, 3_000, 12_000),
            Workload::Pareto => pareto::trace(seed, 20_000),
            Workload::Phase => phase_change::trace(seed),
            Workload::Snapshots => panic!("real programs have no seed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_repeatable_and_free_all_they_allocate() {
        for workload in [Workload::Kv].into_iter().chain(Workload::PACKED) {
            let (trace, again) = (workload.short(3), workload.short(3));
            assert_eq!((trace.ops.len(), trace.peak_units), (again.ops.len(), again.peak_units));
            let mut live = vec![0_u64; trace.places];
            for op in &trace.ops {
                let place = &mut live[op.place as usize];
                assert_eq!(
                    *place == 0,
                    op.size_units > 0,
                    "{workload:?}: a place is filled and emptied in turns"
                );
                *place = u64::from(op.size_units);
            }
            assert!(live.iter().all(|&units| units == 0));
            assert_ne!(trace.peak_units, workload.short(4).peak_units, "{workload:?}: the seed matters");
        }
    }
}
