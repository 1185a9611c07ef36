//! flex's search and bookkeeping of blocks alone, without requests, regions to choose from, and statistics.

use flex::BlockHandle;
use flex::bench::OffsetRegion;

use super::{Peer, UNIT_BYTES};

/// The blocks of one region.
pub(crate) struct FlexRegion(OffsetRegion);

impl Peer for FlexRegion {
    const NAME: &'static str = "flex search alone";
    type Handle = (BlockHandle, u64);

    fn new(capacity_units: u64) -> Self {
        FlexRegion(OffsetRegion::new(capacity_units * UNIT_BYTES))
    }

    #[inline]
    fn allocate(&mut self, size_units: u32) -> Option<Self::Handle> {
        self.0.allocate(u64::from(size_units) * UNIT_BYTES)
    }

    #[inline]
    fn free(&mut self, handle: Self::Handle) {
        assert!(self.0.free(handle.0), "a live block");
    }

    fn offset_units(&self, handle: &Self::Handle) -> u64 {
        handle.1 / UNIT_BYTES
    }
}
