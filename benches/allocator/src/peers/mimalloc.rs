//! mimalloc: real memory, at a 1024th of the size, never touched. Not an allocator of offsets, but a limit of what a
//! pair can cost: thread-local lists of one size each, no coalescing.

use libmimalloc_sys::{mi_free, mi_malloc};

use super::{Peer, UNIT_BYTES};

/// Sizes are divided by this, so that the usual ones stay on mimalloc's fast path.
const SCALE: u64 = 1024;

/// See the module's text.
pub(crate) struct Mimalloc;

impl Peer for Mimalloc {
    const NAME: &'static str = "mimalloc (limit)";
    type Handle = *mut std::ffi::c_void;

    fn new(_capacity_units: u64) -> Self {
        Mimalloc
    }

    #[inline]
    fn allocate(&mut self, size_units: u32) -> Option<Self::Handle> {
        let bytes = (u64::from(size_units) * UNIT_BYTES / SCALE).max(8);
        // SAFETY: any size may be asked for.
        let pointer = unsafe { mi_malloc(bytes as usize) };
        (!pointer.is_null()).then_some(pointer)
    }

    #[inline]
    fn free(&mut self, handle: Self::Handle) {
        // SAFETY: the pointer came from mimalloc and is given up here.
        unsafe { mi_free(handle) }
    }

    fn offset_units(&self, _handle: &Self::Handle) -> u64 {
        unreachable!("mimalloc has no offsets")
    }
}
