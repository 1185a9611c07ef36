//! flex without its lock: all that runs under the allocator mutex.

use flex::BlockHandle;
use flex::bench::OffsetArena;

use super::{Peer, UNIT_BYTES};

/// The arena with one region.
pub(crate) struct FlexArena(OffsetArena);

impl Peer for FlexArena {
    const NAME: &'static str = "flex arena";
    type Handle = (BlockHandle, u64);

    fn new(capacity_units: u64) -> Self {
        FlexArena(OffsetArena::new(capacity_units * UNIT_BYTES).expect("a capacity that a region can have"))
    }

    #[inline]
    fn allocate(&mut self, size_units: u32) -> Option<Self::Handle> {
        self.0.allocate(u64::from(size_units) * UNIT_BYTES)
    }

    #[inline]
    fn free(&mut self, handle: Self::Handle) {
        self.0.free(handle.0).expect("a live block");
    }

    fn offset_units(&self, handle: &Self::Handle) -> u64 {
        handle.1 / UNIT_BYTES
    }
}
