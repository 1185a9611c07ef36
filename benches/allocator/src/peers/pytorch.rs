//! PyTorch's caching allocator for CUDA: the model that `flexmem replay --compare` plays too.

use flexmem::replay::{BlockId, CachingAllocator};

use super::{Peer, UNIT_BYTES};

/// One stream, without expandable segments.
pub(crate) struct PyTorch(CachingAllocator);

impl Peer for PyTorch {
    const NAME: &'static str = "PyTorch model";
    type Handle = BlockId;

    fn new(capacity_units: u64) -> Self {
        PyTorch(CachingAllocator::new(capacity_units * UNIT_BYTES))
    }

    fn allocate(&mut self, size_units: u32) -> Option<BlockId> {
        self.0.allocate(u64::from(size_units) * UNIT_BYTES, 0)
    }

    fn free(&mut self, handle: BlockId) {
        self.0.free(handle);
    }

    fn offset_units(&self, handle: &BlockId) -> u64 {
        self.0.offset_bytes(*handle) / UNIT_BYTES
    }
}
