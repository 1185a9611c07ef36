//! No allocator at all: what the harness itself costs.

use super::Peer;

/// Answers every request with a number.
pub(crate) struct Floor(u32);

impl Peer for Floor {
    const NAME: &'static str = "harness floor";
    type Handle = u32;

    fn new(_capacity_units: u64) -> Self {
        Floor(0)
    }

    // Calls as the peers have them.
    #[inline(never)]
    fn allocate(&mut self, size_units: u32) -> Option<u32> {
        self.0 = self.0.wrapping_add(size_units);
        Some(self.0)
    }

    #[inline(never)]
    fn free(&mut self, handle: u32) {
        self.0 ^= handle;
    }

    fn offset_units(&self, _handle: &u32) -> u64 {
        unreachable!("the floor has no blocks")
    }
}
