//! Everything that can go wrong, as one enum, each variant with its numbers.
//!
//! Pure values; no lock. Texts are formatted when an error is shown, never under the allocator mutex.

use std::fmt;

use crate::device::DeviceError;
use crate::directive::{Domains, MemoryType};
use crate::pressure::ReclaimReport;
use crate::units::DomainId;

/// Why an operation of the allocator failed. The allocator is unchanged by it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlexError {
    /// No memory was found, also after reclaiming.
    #[error(transparent)]
    OutOfMemory(#[from] Box<OutOfMemory>),
    /// A size of zero, or one whose rounded total does not fit in 64 bits.
    #[error(
        "cannot allocate {requested_bytes} bytes over {chunk_count} chunk(s); \
         expected at least 1 byte and a rounded total below 2^64"
    )]
    InvalidSize {
        /// The size asked for, in bytes.
        requested_bytes: u64,
        /// Chunks it was to be spread over.
        chunk_count: usize,
    },
    /// A directive that contradicts itself.
    #[error("invalid placement: {0}")]
    InvalidPlacement(#[from] PlacementError),
    /// A block that is not allocated here: freed twice, or never allocated.
    #[error(
        "block {index} (generation {generation}) is not allocated: freed before, or never allocated here"
    )]
    UnknownAllocation {
        /// The block's index.
        index: u32,
        /// The generation of the handle that was given.
        generation: u32,
    },
    /// A domain the device does not have.
    #[error("domain {domain} does not exist; expected one of the {domain_count} domains numbered from 0")]
    UnknownDomain {
        /// The domain asked for.
        domain: DomainId,
        /// The domains the device has.
        domain_count: u32,
    },
    /// A layout of regions that cannot be, or a region the device refused.
    #[error("region setup: {0}")]
    RegionSetup(#[from] RegionSetupError),
    /// The device failed at something other than acquiring a region.
    #[error("device: {0}")]
    Device(#[from] DeviceError),
    /// An invariant does not hold: a bug of the allocator.
    #[error("the allocator's state is inconsistent: {0}")]
    Corrupted(String),
    /// The host has no memory for a history of so many events.
    #[error("no host memory for a history of {max_entries} events of 64 bytes; expected fewer")]
    HistoryTooLarge {
        /// The events to be kept.
        max_entries: u32,
    },
    /// The process is a forked child; device memory belongs to its parent.
    #[error("the allocator cannot be used in a forked process; start the process with `spawn` instead")]
    Forked,
}

/// A directive that contradicts itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// Neither domains nor an allocation to be near.
    #[error("no domains are listed and no allocation to be near is given; expected one of the two")]
    NoDomains,
    /// The allocation to be near has been freed.
    #[error("the allocation to be near is no longer live")]
    NearNotLive,
    /// Interleaving needs two domains.
    #[error("interleaving over {domain_count} domain(s); expected at least 2")]
    TooFewDomains {
        /// The domains in effect.
        domain_count: usize,
    },
    /// One block was asked for.
    #[error(
        "one contiguous block cannot be interleaved over {domain_count} domains; expected a bound directive"
    )]
    NotContiguous {
        /// The domains in effect.
        domain_count: usize,
    },
}

/// A layout of regions that cannot be, or a region the device refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionSetupError {
    /// A device without domains.
    #[error("0 domains; expected at least 1")]
    NoDomains,
    /// A device without regions.
    #[error("0 regions; expected at least 1")]
    NoRegions,
    /// More regions than block metadata can name.
    #[error("{region_count} regions; expected at most {max_regions}")]
    TooManyRegions {
        /// The number given.
        region_count: usize,
        /// The most there may be.
        max_regions: usize,
    },
    /// Regions cannot be spread evenly over the domains.
    #[error("{region_count} regions cannot be divided evenly among {domain_count} domains")]
    UnevenDomains {
        /// The number of regions.
        region_count: u32,
        /// The number of domains.
        domain_count: u32,
    },
    /// Program regions all lie in domain 0 and must fit there.
    #[error(
        "{program_regions} program regions; expected at most {regions_per_domain}, the regions of one domain"
    )]
    TooManyProgramRegions {
        /// The number given.
        program_regions: u32,
        /// The regions a domain has.
        regions_per_domain: u32,
    },
    /// All regions are for programs.
    #[error("none of the {region_count} regions is for tensors; expected at least 1")]
    NoTensorRegion {
        /// The number of regions.
        region_count: usize,
    },
    /// The total is not even one unit.
    #[error("a total of {total_bytes} bytes; expected at least {minimum_bytes}")]
    TotalTooSmall {
        /// The total given, in bytes.
        total_bytes: u64,
        /// The least that works, in bytes.
        minimum_bytes: u64,
    },
    /// A region without a single unit.
    #[error("region {slot} has {size_bytes} bytes; expected at least {minimum_bytes}")]
    RegionTooSmall {
        /// Its place in the topology.
        slot: usize,
        /// Its size, in bytes.
        size_bytes: u64,
        /// The least that works, in bytes.
        minimum_bytes: u64,
    },
    /// A region too large for 32-bit offsets in units.
    #[error("region {slot} has {size_bytes} bytes; expected at most {maximum_bytes}")]
    RegionTooLarge {
        /// Its place in the topology.
        slot: usize,
        /// Its size, in bytes.
        size_bytes: u64,
        /// The most that works, in bytes.
        maximum_bytes: u64,
    },
    /// The device refused a region.
    #[error("the device refused a {memory_type} region of {size_bytes} bytes in domain {domain}: {source}")]
    Refused {
        /// The size asked for, in bytes.
        size_bytes: u64,
        /// The domain asked for.
        domain: DomainId,
        /// What it was for.
        memory_type: MemoryType,
        /// What the device said.
        source: DeviceError,
    },
    /// Another thread kept acquiring or releasing the only region that could serve.
    #[error("another thread has been acquiring or releasing the region for {waited:?}")]
    Busy {
        /// How long this thread waited for it.
        waited: std::time::Duration,
    },
}

/// The figures of a request that found no memory, taken at its last search.
///
/// *Capacity*, *free* and *largest* count the regions the request may use; a region that is not acquired yet is
/// one free block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// Usable bytes of those regions.
    pub capacity_bytes: u64,
    /// Free bytes in them.
    pub free_bytes: u64,
    /// The largest free block in them.
    pub largest_free_bytes: u64,
    /// The largest of those regions; no chunk can be larger.
    pub largest_region_bytes: u64,
    /// The cap on allocated bytes in force, if any: *free* and *largest* respect it.
    pub limit_bytes: Option<u64>,
    /// The domains asked for.
    pub domains: Domains,
    /// What the memory was for.
    pub memory_type: MemoryType,
    /// Whether an empty device could serve the request.
    pub possible: bool,
    /// What was tried before giving up.
    pub reclaim: ReclaimReport,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of memory: {} bytes of {} memory requested in domain(s) ",
            self.requested_bytes, self.memory_type
        )?;
        for (position, domain) in self.domains.iter().enumerate() {
            write!(f, "{}{domain}", if position == 0 { "" } else { ", " })?;
        }
        write!(
            f,
            "; {} of {} bytes are free, the largest free block has {}",
            self.free_bytes, self.capacity_bytes, self.largest_free_bytes
        )?;
        if !self.possible {
            write!(
                f,
                "; even an empty device could not serve it, its largest region has {} bytes",
                self.largest_region_bytes
            )?;
        }
        if let Some(limit_bytes) = self.limit_bytes {
            write!(f, "; allocations are limited to {limit_bytes} bytes")?;
        }
        Ok(())
    }
}

impl std::error::Error for OutOfMemory {}

#[cfg(test)]
mod tests {
    use super::*;

    fn out_of_memory(possible: bool) -> FlexError {
        FlexError::from(Box::new(OutOfMemory {
            requested_bytes: 2048,
            capacity_bytes: 8192,
            free_bytes: 1500,
            largest_free_bytes: 1024,
            largest_region_bytes: 1792,
            limit_bytes: None,
            domains: Domains::from_slice(&[DomainId(0), DomainId(2)]),
            memory_type: MemoryType::Tensor,
            possible,
            reclaim: ReclaimReport::default(),
        }))
    }

    #[test]
    fn out_of_memory_names_every_figure() {
        assert_eq!(
            out_of_memory(true).to_string(),
            "out of memory: 2048 bytes of tensor memory requested in domain(s) 0, 2; \
             1500 of 8192 bytes are free, the largest free block has 1024"
        );
        assert!(
            out_of_memory(false)
                .to_string()
                .ends_with("; even an empty device could not serve it, its largest region has 1792 bytes")
        );
    }

    #[test]
    fn messages_name_the_value_and_what_was_expected() {
        let texts = [
            (
                FlexError::InvalidSize { requested_bytes: 0, chunk_count: 1 }.to_string(),
                "cannot allocate 0 bytes over 1 chunk(s); expected at least 1 byte and a rounded total below 2^64",
            ),
            (
                FlexError::UnknownDomain { domain: DomainId(4), domain_count: 2 }.to_string(),
                "domain 4 does not exist; expected one of the 2 domains numbered from 0",
            ),
            (
                FlexError::from(PlacementError::TooFewDomains { domain_count: 1 }).to_string(),
                "invalid placement: interleaving over 1 domain(s); expected at least 2",
            ),
            (
                FlexError::from(RegionSetupError::Refused {
                    size_bytes: 4096,
                    domain: DomainId(1),
                    memory_type: MemoryType::Program,
                    source: DeviceError::Injected { operation: "acquire_region", nth: 3 },
                })
                .to_string(),
                "region setup: the device refused a program region of 4096 bytes in domain 1: \
                 acquire_region call 3 was made to fail",
            ),
        ];
        for (text, expected) in texts {
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn errors_stay_small() {
        assert!(size_of::<FlexError>() <= 80, "{}", size_of::<FlexError>());
    }
}
