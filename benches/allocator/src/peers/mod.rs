//! The allocators that are compared, behind one trait.
//!
//! All of them hand out spans of an address space of `capacity_units` units of 128 bytes. None of them touches
//! device memory; those that keep their metadata in the memory itself get real memory to keep it in.

pub(crate) mod best_fit;
pub(crate) mod flex_arena;
pub(crate) mod flex_locked;
pub(crate) mod flex_recording;
pub(crate) mod flex_region;
pub(crate) mod floor;
pub(crate) mod mimalloc;
pub(crate) mod offset_allocator;
pub(crate) mod pytorch;
pub(crate) mod rlsf;
pub(crate) mod vma;

/// Bytes in a unit.
pub(crate) const UNIT_BYTES: u64 = flex::ALIGNMENT_BYTES;

/// An allocator of offsets.
pub(crate) trait Peer: Sized {
    /// What it is called in tables.
    const NAME: &'static str;

    /// Names a live block.
    type Handle;

    /// An empty allocator of this many units.
    fn new(capacity_units: u64) -> Self;

    /// Allocates, or refuses for want of room.
    fn allocate(&mut self, size_units: u32) -> Option<Self::Handle>;

    /// Frees a live block.
    fn free(&mut self, handle: Self::Handle);

    /// Where a live block starts, in units.
    fn offset_units(&self, handle: &Self::Handle) -> u64;
}
