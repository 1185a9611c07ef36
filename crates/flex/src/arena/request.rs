//! A checked request, and what may come of it.
//!
//! Pure values; no lock.

use smallvec::SmallVec;

use super::blocks::BlockHandle;
use super::region::RegionSlot;
use crate::address::Chunk;
use crate::directive::{AllocationDirective, Domains, MemoryType, PlacementPolicy};
use crate::error::FlexError;
use crate::units::{ALIGNMENT_BYTES, DomainId, align_up};

/// A placed chunk and the handle that frees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) handle: BlockHandle,
    pub(crate) chunk: Chunk,
}

/// The chunks of one allocation; one unless interleaved.
pub(crate) type Chunks = SmallVec<[Placed; 1]>;

/// A request with a valid size and domains that exist.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) requested_bytes: u64,
    pub(crate) policy: PlacementPolicy,
    pub(crate) domains: Domains,
    pub(crate) memory_type: MemoryType,
    /// Regions the device refused to this request: not asked for again on its behalf.
    pub(crate) refused: SmallVec<[RegionSlot; 2]>,
    /// Where in the program it comes from, while history is on.
    pub(crate) site: u32,
    /// How many chunks the allocation has; one unless interleaved.
    chunk_count: usize,
    /// Size of each chunk, rounded up.
    chunk_bytes: u64,
}

impl Request {
    /// Checks a size and a directive against the number of domains of a device.
    ///
    /// # Errors
    ///
    /// [`FlexError::InvalidSize`] for zero or a total beyond 64 bits, [`FlexError::UnknownDomain`].
    #[inline]
    pub(crate) fn new(
        requested_bytes: u64,
        directive: &AllocationDirective,
        domain_count: u32,
    ) -> Result<Request, FlexError> {
        if let Some(&domain) = directive.domains().iter().find(|domain| domain.0 >= domain_count) {
            return Err(FlexError::UnknownDomain { domain, domain_count });
        }
        let chunk_count = match directive.policy() {
            PlacementPolicy::Bind => 1,
            PlacementPolicy::Interleave => directive.domains().len(),
        };
        let invalid = || FlexError::InvalidSize { requested_bytes, chunk_count };
        if requested_bytes == 0 {
            return Err(invalid());
        }
        // Divisions by a variable are slow, and most allocations have one chunk.
        let share_bytes =
            if chunk_count == 1 { requested_bytes } else { requested_bytes.div_ceil(chunk_count as u64) };
        let Some(chunk_bytes) = align_up(share_bytes) else { return Err(invalid()) };
        if chunk_bytes.checked_mul(chunk_count as u64).is_none() {
            return Err(invalid());
        }
        Ok(Request {
            requested_bytes,
            policy: directive.policy(),
            domains: copy_of(directive.domains()),
            memory_type: directive.memory_type(),
            refused: SmallVec::new(),
            site: 0,
            chunk_count,
            chunk_bytes,
        })
    }

    /// How many chunks the allocation has.
    #[inline]
    pub(crate) fn chunk_count(&self) -> usize {
        self.chunk_count
    }

    /// Size of all chunks in bytes.
    #[inline]
    pub(crate) fn total_bytes(&self) -> u64 {
        // Checked when the request was made.
        self.chunk_bytes * self.chunk_count as u64
    }

    /// Size of each chunk in units, unless no region can be that large.
    #[inline]
    pub(crate) fn chunk_units(&self) -> Option<u32> {
        u32::try_from(self.chunk_bytes / ALIGNMENT_BYTES).ok()
    }

    /// The domains that may hold a chunk.
    #[inline]
    pub(crate) fn domains_of(&self, chunk: usize) -> &[DomainId] {
        match self.policy {
            PlacementPolicy::Bind => &self.domains,
            PlacementPolicy::Interleave => &self.domains[chunk..=chunk],
        }
    }

    /// The part of a chunk beyond its share of the requested bytes. Shares differ by at most one byte and add
    /// up to the request, so the slack is at most 128 (an empty share of a request smaller than its chunks).
    #[inline]
    pub(crate) fn slack_of(&self, chunk: usize) -> u8 {
        let count = self.chunk_count as u64;
        let share = match count {
            1 => self.requested_bytes,
            _ => self.requested_bytes / count + u64::from((chunk as u64) < self.requested_bytes % count),
        };
        // chunk_bytes < ceil(requested / count) + 128, and the share is at most one less than that ceiling.
        u8::try_from(self.chunk_bytes - share).expect("a slack of at most 128 bytes")
    }
}

/// A copy of a list of domains, quick for one.
#[inline]
fn copy_of(domains: &[DomainId]) -> Domains {
    match *domains {
        [domain] => Domains::from_buf_and_len([domain; 2], 1),
        _ => Domains::from_slice(domains),
    }
}

/// Why a request was not placed. The arena is as before, except that a needed region is marked as being acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unplaced {
    /// The memory is in use, too fragmented, or beyond the limit.
    Exhausted,
    /// No state of the device could serve it.
    Impossible,
    /// The caller acquires this region outside the mutex, reports the outcome, and asks again.
    NeedsRegion(RegionSlot),
    /// A region that could serve is being acquired or released by another thread, or blocks of it are held to drop
    /// their pages: worth another look when that is over.
    RegionBusy,
}

/// What a freed block was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) size_bytes: u64,
    pub(crate) requested_bytes: u64,
    pub(crate) memory_type: MemoryType,
}

/// What there is for a request: over the regions it may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Figures {
    pub(crate) capacity_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) largest_free_bytes: u64,
    pub(crate) largest_region_bytes: u64,
}

impl Figures {
    /// What is left when only so many bytes may still be allocated.
    pub(crate) fn limited_to(mut self, limit_left_bytes: u64) -> Figures {
        self.free_bytes = self.free_bytes.min(limit_left_bytes);
        self.largest_free_bytes = self.largest_free_bytes.min(limit_left_bytes);
        self
    }
}
