//! Playing a trace on an allocator.

use crate::peers::{Peer, UNIT_BYTES};
use crate::workloads::{Op, Trace};

/// An allocator and the blocks that a trace has live on it.
pub(crate) struct Replay<P: Peer> {
    peer: P,
    live: Vec<Option<P::Handle>>,
}

impl<P: Peer> Replay<P> {
    pub(crate) fn new(trace: &Trace, capacity_units: u64) -> Self {
        let capacity_units = capacity_units.min(u64::from(u32::MAX));
        Replay { peer: P::new(capacity_units), live: (0..trace.places).map(|_| None).collect() }
    }

    /// One step; `false` if an allocation was refused.
    #[inline(always)]
    pub(crate) fn step(&mut self, op: Op) -> bool {
        let place = &mut self.live[op.place as usize];
        if op.size_units > 0 {
            *place = self.peer.allocate(op.size_units);
            return place.is_some();
        }
        if let Some(handle) = place.take() {
            self.peer.free(handle);
        }
        true
    }

    /// The whole trace; returns how many allocations were refused.
    pub(crate) fn play(&mut self, trace: &Trace) -> usize {
        trace.ops.iter().map(|&op| usize::from(!self.step(op))).sum()
    }

    /// Whether the whole trace is served. Stops at the first refusal.
    pub(crate) fn serves(&mut self, trace: &Trace) -> bool {
        trace.ops.iter().all(|&op| self.step(op))
    }

    /// Where the block in a place starts, in units.
    pub(crate) fn offset_units(&self, place: u32) -> Option<u64> {
        self.live[place as usize].as_ref().map(|handle| self.peer.offset_units(handle))
    }
}

/// Bytes of device memory that a number of units is.
pub(crate) fn gibibytes(units: u64) -> f64 {
    (units * UNIT_BYTES) as f64 / (1_u64 << 30) as f64
}
