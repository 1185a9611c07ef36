//! [`CompositeAddress`]: an allocation as its owner holds it.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::address::Chunk;
use crate::arena::{BlockHandle, Chunks};
use crate::error::FlexError;
use crate::fork::is_forked;
use crate::shared::Shared;
use crate::units::DomainId;

/// An owned allocation: one chunk, or one per domain when interleaved. Dropping it frees it; it is never empty.
///
/// Freeing never blocks, runs on any thread, and keeps the allocator alive as long as it has to.
pub struct CompositeAddress {
    allocator: Arc<Shared>,
    /// Empty only after the chunks were freed or given up.
    chunks: Chunks,
    requested_bytes: u64,
    size_bytes: u64,
}

impl CompositeAddress {
    pub(crate) fn new(allocator: Arc<Shared>, chunks: Chunks, requested_bytes: u64) -> Self {
        debug_assert!(!chunks.is_empty());
        let size_bytes = chunks.iter().map(|placed| placed.chunk.size_bytes).sum();
        CompositeAddress { allocator, chunks, requested_bytes, size_bytes }
    }

    /// The chunks, in the order of the directive's domains.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = Chunk> + '_ {
        self.chunks.iter().map(|placed| placed.chunk)
    }

    /// Bytes asked for.
    pub fn requested_bytes(&self) -> u64 {
        self.requested_bytes
    }

    /// Bytes taken, a multiple of 128 per chunk.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The host address of the first byte, if there is one chunk and the device is host-addressable.
    pub fn host_address(&self) -> Option<usize> {
        match self.chunks.as_slice() {
            [placed] => self.allocator.device.host_address(placed.chunk.address),
            _ => None,
        }
    }

    /// A reference that does not keep the allocation alive, for
    /// [`AllocationDirective`](crate::AllocationDirective)'s `near`.
    pub fn reference(&self) -> AllocationRef {
        AllocationRef {
            allocator: Arc::clone(&self.allocator),
            handle: self.chunks[0].handle,
            domains: self.chunks().map(|chunk| chunk.domain).collect(),
        }
    }

    /// Frees the allocation.
    ///
    /// # Errors
    /// [`FlexError::UnknownAllocation`] if a chunk was freed behind the owner's back, which only a foreign holder
    /// of its [`BlockHandle`] can do. The other chunks are freed all the same.
    pub fn free(mut self) -> Result<(), FlexError> {
        self.free_chunks()
    }

    /// Gives up ownership of a one-chunk allocation in favour of a plain handle, to be freed with
    /// [`FlexAllocator::free_block`](crate::FlexAllocator::free_block).
    ///
    /// # Errors
    /// Returns `self` if it has more than one chunk.
    pub fn into_block(mut self) -> Result<BlockHandle, Self> {
        match self.chunks.as_slice() {
            [placed] => {
                let handle = placed.handle;
                self.chunks.clear();
                Ok(handle)
            }
            _ => Err(self),
        }
    }

    fn free_chunks(&mut self) -> Result<(), FlexError> {
        let mut result = Ok(());
        for placed in self.chunks.drain(..) {
            result = result.and(self.allocator.free_chunk(placed));
        }
        result
    }
}

impl Drop for CompositeAddress {
    fn drop(&mut self) {
        let freed = self.free_chunks();
        debug_assert!(freed.is_ok() || std::thread::panicking(), "an owned allocation is live: {freed:?}");
    }
}

impl fmt::Debug for CompositeAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("CompositeAddress")
            .field("requested_bytes", &self.requested_bytes)
            .field("chunks", &self.chunks().collect::<SmallVec<[Chunk; 2]>>())
            .finish_non_exhaustive()
    }
}

/// A weak reference to an allocation: it knows the domains, and whether the allocation is still live.
#[derive(Clone)]
pub struct AllocationRef {
    allocator: Arc<Shared>,
    handle: BlockHandle,
    domains: SmallVec<[DomainId; 2]>,
}

impl AllocationRef {
    /// The domains of the allocation's chunks, in order.
    pub fn domains(&self) -> &[DomainId] {
        &self.domains
    }

    /// Whether the allocation has not been freed. Never true in a forked child.
    pub fn is_live(&self) -> bool {
        !is_forked() && self.allocator.lookup(self.handle).is_some()
    }
}
