//! One operation on an allocator, as the property tests (`strategies.rs`) and the fuzzers (`fuzz/`) draw them.

use flex::{AllocationDirective, DomainId, FlexError, MemoryType, PlacementError, PlacementPolicy};

/// One step of a random run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Allocate, and keep the result.
    Allocate(Ask),
    /// Allocate in the domains of a live allocation, if there is one: it replaces those of the ask.
    AllocateNear { ask: Ask, pick: usize },
    /// Free a live allocation; `pick` counts around the live ones.
    Free { pick: usize },
    /// The same while the mutex is taken, so that the free is pending for a while.
    FreeWhileLocked { pick: usize },
    /// Free one that has been freed before.
    FreeAgain { pick: usize },
    /// Free something that was never handed out.
    FreeUnknown { index: u32, generation: u32 },
    /// Let the device refuse the next region it is asked for.
    FailNextAcquire,
    /// Give wholly free regions back; the device takes them unless told to keep them.
    ReleaseFreeRegions { device_keeps: bool },
    /// Drop the pages of free blocks of at least this size.
    Trim { minimum_bytes: u64 },
    /// Cap the tensor bytes, or lift the cap.
    SetLimit { limit_bytes: Option<u64> },
    /// Start peaks again.
    ResetPeak,
    /// Start sums again.
    ResetAccumulated,
}

/// What an allocation asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    pub requested_bytes: u64,
    pub policy: PlacementPolicy,
    pub domains: Vec<DomainId>,
    pub memory_type: MemoryType,
}

impl Ask {
    /// The directive that asks for it.
    pub fn directive(&self) -> Result<AllocationDirective, FlexError> {
        AllocationDirective::builder()
            .policy(self.policy)
            .domains(self.domains.iter().copied())
            .memory_type(self.memory_type)
            .build()
    }

    /// What is wrong with it on a device with so many domains, if something is.
    pub fn refusal(&self, domain_count: u32) -> Option<FlexError> {
        if self.domains.is_empty() {
            return Some(PlacementError::NoDomains.into());
        }
        if self.policy == PlacementPolicy::Interleave && self.domains.len() < 2 {
            return Some(PlacementError::TooFewDomains { domain_count: self.domains.len() }.into());
        }
        if let Some(&domain) = self.domains.iter().find(|domain| domain.0 >= domain_count) {
            return Some(FlexError::UnknownDomain { domain, domain_count });
        }
        let share_bytes = self.requested_bytes.div_ceil(self.chunk_count());
        let chunk_bytes = share_bytes.checked_next_multiple_of(128);
        let overflows = chunk_bytes.is_none_or(|bytes| bytes.checked_mul(self.chunk_count()).is_none());
        (overflows || self.requested_bytes == 0).then_some(FlexError::InvalidSize {
            requested_bytes: self.requested_bytes,
            chunk_count: self.chunk_count() as usize,
        })
    }

    /// Number of chunks.
    pub fn chunk_count(&self) -> u64 {
        match self.policy {
            PlacementPolicy::Bind => 1,
            PlacementPolicy::Interleave => self.domains.len() as u64,
        }
    }

    /// Bytes of each chunk, rounded up.
    pub fn chunk_bytes(&self) -> u64 {
        self.requested_bytes.div_ceil(self.chunk_count()).next_multiple_of(128)
    }

    /// Bytes of all chunks.
    pub fn total_bytes(&self) -> u64 {
        self.chunk_bytes() * self.chunk_count()
    }
}
