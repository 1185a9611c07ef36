//! One exhausted request, as the callback sees it.

use super::report::ReclaimReport;
use super::waiters::Ticket;
use crate::arena::{Chunks, Figures, Request};
use crate::error::FlexError;
use crate::units::DomainId;

/// Why nothing was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PressureCause {
    /// Less is free than was asked for.
    Exhausted,
    /// Enough is free, but no block fits.
    Fragmented,
}

impl PressureCause {
    pub(crate) fn of(requested_bytes: u64, figures: &Figures) -> Self {
        if figures.free_bytes >= requested_bytes {
            PressureCause::Fragmented
        } else {
            PressureCause::Exhausted
        }
    }
}

/// A request that the allocator could not serve.
///
/// The allocator owns it and cleans up after it: what was granted and not taken goes back, also on unwind.
pub struct PressureRequest {
    pub(crate) placement: Request,
    pub(crate) granted: Option<Chunks>,
    pub(crate) ticket: Option<Ticket>,
    pub(crate) attempt: u32,
    pub(crate) figures: Figures,
    pub(crate) report: ReclaimReport,
    pub(crate) own_collections: u32,
    /// Why the device refused a region that could have served it.
    pub(crate) refusal: Option<FlexError>,
}

impl PressureRequest {
    pub(crate) fn new(placement: Request, refusal: Option<FlexError>, figures: Figures) -> Self {
        PressureRequest {
            placement,
            granted: None,
            ticket: None,
            attempt: 1,
            figures,
            report: ReclaimReport::default(),
            own_collections: 0,
            refusal,
        }
    }

    /// Bytes asked for.
    pub fn requested_bytes(&self) -> u64 {
        self.placement.requested_bytes
    }

    /// The domains it may use.
    pub fn domains(&self) -> &[DomainId] {
        &self.placement.domains
    }

    /// How often the callback has been called for it, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Free bytes in the regions it may use, when its first search failed.
    pub fn free_bytes(&self) -> u64 {
        self.figures.free_bytes
    }

    /// The largest free block in those regions, when its first search failed.
    pub fn largest_free_bytes(&self) -> u64 {
        self.figures.largest_free_bytes
    }

    /// Why nothing was found.
    pub fn cause(&self) -> PressureCause {
        PressureCause::of(self.placement.requested_bytes, &self.figures)
    }

    /// What was tried so far.
    pub fn report(&self) -> &ReclaimReport {
        &self.report
    }
}
