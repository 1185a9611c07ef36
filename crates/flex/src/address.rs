//! Where device memory is: virtual addresses and the chunks of an allocation.
//!
//! Pure values; no lock. The owning address of a whole allocation is elsewhere.

use std::fmt;

use crate::units::{DomainId, RegionId};

/// An address the device understands: a region and an offset into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtualAddress {
    /// The region, in the device's own naming.
    pub region_id: RegionId,
    /// Distance from the start of the region, in bytes; a multiple of [`crate::ALIGNMENT_BYTES`] for a chunk.
    pub offset_bytes: u64,
}

impl fmt::Display for VirtualAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.region_id, self.offset_bytes)
    }
}

/// One contiguous part of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Chunk {
    /// Where it starts.
    pub address: VirtualAddress,
    /// Its size in bytes, rounded up to [`crate::ALIGNMENT_BYTES`].
    pub size_bytes: u64,
    /// The domain it lies in.
    pub domain: DomainId,
}
