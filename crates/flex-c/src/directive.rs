//! Where an allocation goes and what it is for, as C says it.
//!
//! Choices are numbers with names, not enums: what C passes may be any number, and an unknown one is an error.

use std::ffi::CStr;

use flex::{AllocationDirective, DomainId, MemoryType, PlacementPolicy};

use crate::allocation::{FlexAllocation, near_domains};
use crate::out;
use crate::status::Failure;

/// How an allocation relates to its domains.
pub type FlexPolicy = i32;
/// One chunk in any one of the listed domains.
pub const FLEX_BIND: FlexPolicy = 0;
/// One chunk in each listed domain, in order.
pub const FLEX_INTERLEAVE: FlexPolicy = 1;

/// What memory is for. The two never mix.
pub type FlexMemoryType = i32;
/// Data of tensors.
pub const FLEX_TENSOR: FlexMemoryType = 0;
/// Programs of the device.
pub const FLEX_PROGRAM: FlexMemoryType = 1;

/// Where an allocation goes and what it is for. With all bytes 0 it is bound, for tensors, and lacks a domain.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FlexDirective {
    /// `FLEX_BIND` or `FLEX_INTERLEAVE`.
    pub policy: FlexPolicy,
    /// `FLEX_TENSOR` or `FLEX_PROGRAM`.
    pub memory_type: FlexMemoryType,
    /// The domains, in order; duplicates are kept. May be null if `domain_count` is 0.
    pub domains: *const u32,
    /// How many domains are listed.
    pub domain_count: usize,
    /// An allocation whose domains to use if none are listed; it must be live. All 0 for none.
    pub near: FlexAllocation,
}

const DIRECTIVE: &CStr = c"flex_allocate: directive is misaligned";
const DOMAINS: &CStr = c"flex_allocate: the directive's domains are null or misaligned";

/// The directive that C means; null is the default: bound to domain 0, for tensors.
///
/// # Safety
/// `directive` is null (the default) or valid for a read, and so are its domains for their count.
pub(crate) unsafe fn read(directive: *const FlexDirective) -> Result<AllocationDirective, Failure> {
    // SAFETY: the caller's contract.
    let Some(directive) = (unsafe { out::copied(directive, DIRECTIVE) })? else {
        return Ok(AllocationDirective::default());
    };
    // SAFETY: the caller's contract.
    let domains = unsafe { out::array(directive.domains, directive.domain_count, DOMAINS) }?;
    let builder = AllocationDirective::builder()
        .policy(policy(directive.policy)?)
        .memory_type(memory_type(directive.memory_type)?)
        .domains(domains.iter().copied().map(DomainId));
    let builder = match directive.near.id {
        0 => builder,
        _ => match near_domains(directive.near) {
            Some(domains) => builder.near(&domains, true),
            None => builder.near(&[], false),
        },
    };
    Ok(builder.build()?)
}

fn policy(policy: FlexPolicy) -> Result<PlacementPolicy, Failure> {
    match policy {
        FLEX_BIND => Ok(PlacementPolicy::Bind),
        FLEX_INTERLEAVE => Ok(PlacementPolicy::Interleave),
        _ => Err(Failure::invalid_argument(c"the policy is neither FLEX_BIND nor FLEX_INTERLEAVE")),
    }
}

fn memory_type(memory_type: FlexMemoryType) -> Result<MemoryType, Failure> {
    match memory_type {
        FLEX_TENSOR => Ok(MemoryType::Tensor),
        FLEX_PROGRAM => Ok(MemoryType::Program),
        _ => Err(Failure::invalid_argument(c"the memory type is neither FLEX_TENSOR nor FLEX_PROGRAM")),
    }
}
