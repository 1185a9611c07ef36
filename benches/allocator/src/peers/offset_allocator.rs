//! offset-allocator: the Rust port of Sebastian Aaltonen's two-level segregated allocator.

use offset_allocator::{Allocation, Allocator};

use super::Peer;

/// Blocks it has room for; it allocates the metadata of all of them at the start.
const MAX_BLOCKS: u32 = 1 << 16;

/// See the module's text.
pub(crate) struct OffsetAllocator(Allocator<u32>);

impl Peer for OffsetAllocator {
    const NAME: &'static str = "offset-allocator";
    type Handle = Allocation<u32>;

    fn new(capacity_units: u64) -> Self {
        let size = u32::try_from(capacity_units).expect("sizes of 32 bits");
        OffsetAllocator(Allocator::with_max_allocs(size, MAX_BLOCKS))
    }

    #[inline]
    fn allocate(&mut self, size_units: u32) -> Option<Self::Handle> {
        self.0.allocate(size_units)
    }

    #[inline]
    fn free(&mut self, handle: Self::Handle) {
        self.0.free(handle);
    }

    fn offset_units(&self, handle: &Self::Handle) -> u64 {
        u64::from(handle.offset)
    }
}
