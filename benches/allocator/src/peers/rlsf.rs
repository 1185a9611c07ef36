//! rlsf: a TLSF that keeps its metadata in the memory it manages.
//!
//! It gets real memory at a quarter of the scale, reserved but not committed: 32 bytes for a unit of 128. Its headers
//! take their share of that, so its packing is not comparable for small blocks.

use std::alloc::Layout;
use std::ptr::NonNull;

use memmap2::{MmapMut, MmapOptions};
use rlsf::Tlsf;

use super::Peer;

/// Bytes of shadow memory for a unit; also what rlsf rounds sizes to.
const SHADOW_BYTES: usize = 32;
const ALIGNMENT: usize = 16;

/// See the module's text.
pub(crate) struct Rlsf {
    tlsf: Tlsf<'static, u32, u32, 32, 32>,
    base: usize,
    /// Declared last: dropped after what points into it.
    _memory: MmapMut,
}

impl Peer for Rlsf {
    const NAME: &'static str = "rlsf (in band)";
    type Handle = NonNull<u8>;

    fn new(capacity_units: u64) -> Self {
        let len = usize::try_from(capacity_units).expect("a 64-bit host") * SHADOW_BYTES;
        let mut memory = MmapOptions::new().len(len).no_reserve_swap().map_anon().expect("address space");
        let block = NonNull::from(&mut *memory);
        let base = block.cast::<u8>().as_ptr() as usize;
        let mut tlsf = Tlsf::new();
        // SAFETY: the memory is private, used through `tlsf` only, and outlives it.
        unsafe { tlsf.insert_free_block_ptr(block) }.expect("room for a block");
        Rlsf { tlsf, base, _memory: memory }
    }

    fn allocate(&mut self, size_units: u32) -> Option<Self::Handle> {
        let layout = Layout::from_size_align(size_units as usize * SHADOW_BYTES, ALIGNMENT).ok()?;
        self.tlsf.allocate(layout)
    }

    fn free(&mut self, handle: Self::Handle) {
        // SAFETY: the handle came from `allocate` with this alignment and is given up here.
        unsafe { self.tlsf.deallocate(handle, ALIGNMENT) }
    }

    fn offset_units(&self, handle: &Self::Handle) -> u64 {
        // Payloads lie behind a header; what counts is that they are in order and a size apart.
        ((handle.as_ptr() as usize - self.base) / SHADOW_BYTES) as u64
    }
}
