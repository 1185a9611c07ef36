//! What a caller asks for beside a size: where an allocation goes and what it is for.
//!
//! Pure values; no lock. A directive that exists is consistent in itself; whether its domains exist on a
//! device is checked by the allocator of that device.

use std::fmt;

use smallvec::SmallVec;

use crate::error::{FlexError, PlacementError};
use crate::units::DomainId;

/// The domains of a directive, in order, duplicates kept.
pub type Domains = SmallVec<[DomainId; 2]>;

/// How an allocation relates to its domains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PlacementPolicy {
    /// One chunk in any one of the listed domains.
    #[default]
    Bind,
    /// One chunk in each listed domain, in order.
    Interleave,
}

/// What a region holds. The two never mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MemoryType {
    /// Data of tensors.
    #[default]
    Tensor,
    /// Programs of the device.
    Program,
}

impl MemoryType {
    /// Both types, in the order of [`MemoryType::index`].
    pub(crate) const ALL: [MemoryType; 2] = [MemoryType::Tensor, MemoryType::Program];

    /// The place of the type in tables kept per memory type.
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for MemoryType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            MemoryType::Tensor => "tensor",
            MemoryType::Program => "program",
        })
    }
}

/// A domain and a memory type as an index into a table with an entry for each number that a byte can have: what most
/// directives amount to, and what every allocation looks up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lane(u8);

impl Lane {
    /// How many entries such a table has.
    pub(crate) const COUNT: usize = 256;

    /// For what has no entry of its own: more than one domain, or a domain beyond the table.
    pub(crate) const NONE: Lane = Lane(u8::MAX);

    /// The lane of a domain and a memory type.
    pub(crate) fn of(domain: DomainId, memory_type: MemoryType) -> Lane {
        let first = u8::try_from(domain.0).ok().and_then(|domain| domain.checked_mul(2));
        first.map_or(Lane::NONE, |first| match first {
            254.. => Lane::NONE,
            _ => Lane(first + memory_type.index() as u8),
        })
    }

    /// Whether it is that of one domain's tensors.
    #[inline]
    pub(crate) fn is_of_tensors(self) -> bool {
        // `NONE` is odd, as programs are.
        usize::from(self.0) % 2 == MemoryType::Tensor.index()
    }

    /// Its entry.
    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Where an allocation goes and what it is for.
///
/// The default binds to domain 0, for tensors.
///
/// ```
/// use flex::{AllocationDirective, DomainId, PlacementPolicy};
///
/// let directive = AllocationDirective::builder()
///     .policy(PlacementPolicy::Interleave)
///     .domains([DomainId(0), DomainId(1)])
///     .build()?;
/// assert_eq!(directive.domains().len(), 2);
/// # Ok::<(), flex::FlexError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocationDirective {
    policy: PlacementPolicy,
    domains: Domains,
    memory_type: MemoryType,
    lane: Lane,
}

impl Default for AllocationDirective {
    fn default() -> Self {
        AllocationDirective::new(
            PlacementPolicy::Bind,
            Domains::from_slice(&[DomainId(0)]),
            MemoryType::Tensor,
        )
    }
}

impl AllocationDirective {
    /// Starts a directive with no domains, bound, for tensors.
    pub fn builder() -> DirectiveBuilder {
        DirectiveBuilder::default()
    }

    fn new(policy: PlacementPolicy, domains: Domains, memory_type: MemoryType) -> Self {
        let lane = match (policy, domains.as_slice()) {
            (PlacementPolicy::Bind, &[domain]) => Lane::of(domain, memory_type),
            _ => Lane::NONE,
        };
        AllocationDirective { policy, domains, memory_type, lane }
    }

    /// Bound or interleaved.
    pub fn policy(&self) -> PlacementPolicy {
        self.policy
    }

    /// The domains in effect: those listed, or those of the allocation it is to be near. Never empty.
    pub fn domains(&self) -> &[DomainId] {
        &self.domains
    }

    /// Its domain and memory type in one, if it is bound to exactly one domain.
    #[inline]
    pub(crate) fn lane(&self) -> Lane {
        self.lane
    }

    /// What the memory is for.
    #[inline]
    pub fn memory_type(&self) -> MemoryType {
        self.memory_type
    }

    /// Checks that an allocation has one chunk.
    ///
    /// # Errors
    ///
    /// [`PlacementError::NotContiguous`] for an interleaved directive.
    pub(crate) fn require_contiguous(&self) -> Result<(), FlexError> {
        match self.policy {
            PlacementPolicy::Bind => Ok(()),
            PlacementPolicy::Interleave => {
                Err(PlacementError::NotContiguous { domain_count: self.domains.len() }.into())
            }
        }
    }
}

/// Builds an [`AllocationDirective`].
#[derive(Debug, Clone, Default)]
pub struct DirectiveBuilder {
    policy: PlacementPolicy,
    domains: Domains,
    near: Option<Near>,
    memory_type: MemoryType,
}

#[derive(Debug, Clone)]
struct Near {
    domains: Domains,
    live: bool,
}

impl DirectiveBuilder {
    /// Bound (the default) or interleaved.
    pub fn policy(mut self, policy: PlacementPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// The domains, in order; duplicates are kept. Replaces those given before.
    pub fn domains(mut self, domains: impl IntoIterator<Item = DomainId>) -> Self {
        self.domains = domains.into_iter().collect();
        self
    }

    /// The domains of another allocation, to use when none are listed, and whether that allocation still lives.
    pub fn near(mut self, domains_of_near: &[DomainId], live: bool) -> Self {
        self.near = Some(Near { domains: Domains::from_slice(domains_of_near), live });
        self
    }

    /// What the memory is for; tensors by default.
    pub fn memory_type(mut self, memory_type: MemoryType) -> Self {
        self.memory_type = memory_type;
        self
    }

    /// Checks the directive.
    ///
    /// # Errors
    ///
    /// [`PlacementError::NearNotLive`] if the near allocation is gone, even when domains are listed;
    /// [`PlacementError::NoDomains`] without domains and without `near`;
    /// [`PlacementError::TooFewDomains`] for interleaving over fewer than two domains in effect.
    pub fn build(self) -> Result<AllocationDirective, FlexError> {
        let DirectiveBuilder { policy, mut domains, near, memory_type } = self;
        if let Some(near) = near {
            if !near.live {
                return Err(PlacementError::NearNotLive.into());
            }
            if domains.is_empty() {
                domains = near.domains;
            }
        }
        if domains.is_empty() {
            return Err(PlacementError::NoDomains.into());
        }
        if policy == PlacementPolicy::Interleave && domains.len() < 2 {
            return Err(PlacementError::TooFewDomains { domain_count: domains.len() }.into());
        }
        Ok(AllocationDirective::new(policy, domains, memory_type))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement_error(builder: DirectiveBuilder) -> PlacementError {
        match builder.build() {
            Err(FlexError::InvalidPlacement(error)) => error,
            other => panic!("expected a placement error, got {other:?}"),
        }
    }

    #[test]
    fn the_default_binds_to_domain_zero_for_tensors() {
        let built = AllocationDirective::builder().domains([DomainId(0)]).build().unwrap();
        assert_eq!(built, AllocationDirective::default());
    }

    #[test]
    fn each_violation_has_its_own_error() {
        let builder = AllocationDirective::builder;
        assert_eq!(placement_error(builder()), PlacementError::NoDomains);
        assert_eq!(placement_error(builder().near(&[DomainId(1)], false)), PlacementError::NearNotLive);
        assert_eq!(
            placement_error(builder().domains([DomainId(0)]).near(&[DomainId(1)], false)),
            PlacementError::NearNotLive
        );
        let one = builder().policy(PlacementPolicy::Interleave).domains([DomainId(0)]);
        assert_eq!(placement_error(one), PlacementError::TooFewDomains { domain_count: 1 });
        let near_one = builder().policy(PlacementPolicy::Interleave).near(&[DomainId(3)], true);
        assert_eq!(placement_error(near_one), PlacementError::TooFewDomains { domain_count: 1 });
    }

    #[test]
    fn near_counts_only_when_no_domain_is_listed() {
        let near = AllocationDirective::builder().near(&[DomainId(2), DomainId(1)], true);
        assert_eq!(near.clone().build().unwrap().domains(), [DomainId(2), DomainId(1)]);
        assert_eq!(near.domains([DomainId(0)]).build().unwrap().domains(), [DomainId(0)]);
    }

    #[test]
    fn lanes_tell_domains_and_types_apart() {
        let mut seen = std::collections::HashSet::new();
        for domain in 0..127 {
            for memory_type in MemoryType::ALL {
                let lane = Lane::of(DomainId(domain), memory_type);
                assert!(lane != Lane::NONE && seen.insert(lane.index()), "{domain} {memory_type}");
            }
        }
        for domain in [127, 128, 256, u32::MAX] {
            assert_eq!(Lane::of(DomainId(domain), MemoryType::Program), Lane::NONE);
        }
        assert_eq!(AllocationDirective::default().lane().index(), 0);
        let two = AllocationDirective::builder().domains([DomainId(0), DomainId(1)]).build().unwrap();
        assert_eq!(two.lane(), Lane::NONE);
    }

    #[test]
    fn duplicates_are_kept() {
        let twice = AllocationDirective::builder()
            .policy(PlacementPolicy::Interleave)
            .domains([DomainId(1), DomainId(1)])
            .build()
            .unwrap();
        assert_eq!(twice.domains(), [DomainId(1), DomainId(1)]);
    }
}
