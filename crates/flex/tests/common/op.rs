//! One operation on an allocator, as property tests, fuzzers and replays draw them.

use flex::{AllocationDirective, DomainId, FlexError, MemoryType, PlacementPolicy, RegionLayout, Topology};
use proptest::prelude::*;

/// One step of a random run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Allocate, and keep the result.
    Allocate(Ask),
    /// Free a live allocation; `pick` counts around the live ones.
    Free { pick: usize },
    /// Free one that has been freed before.
    FreeAgain { pick: usize },
    /// Free something that was never handed out.
    FreeUnknown { index: u32, generation: u32 },
    /// Let the device refuse the next region it is asked for.
    FailNextAcquire,
    /// Give wholly free regions back; the device takes them unless told to keep them.
    ReleaseFreeRegions { device_keeps: bool },
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

/// Small devices of every shape: they fill up within a few dozen steps.
pub fn topologies() -> impl Strategy<Value = Topology> {
    prop_oneof![
        (128_u64..200_000).prop_map(|bytes| Topology::uniform(bytes).unwrap()),
        Just(Topology::spyre(7 * 20_011, 7, 1).unwrap()),
        Just(Topology::spyre(8 * 9_999, 8, 2).unwrap()),
        Just(Topology::spyre(6 * 33_333, 6, 3).unwrap()),
        uneven_topologies(),
    ]
}

fn uneven_topologies() -> impl Strategy<Value = Topology> {
    let region = (0_u32..3, any::<bool>(), 128_u64..60_000).prop_map(|(domain, tensor, size_bytes)| {
        let memory_type = if tensor { MemoryType::Tensor } else { MemoryType::Program };
        RegionLayout { domain: DomainId(domain), memory_type, size_bytes }
    });
    prop::collection::vec(region, 1..6)
        .prop_filter_map("a tensor region", |regions| Topology::custom(regions).ok())
}

/// Steps on a device with so many domains.
pub fn ops(domain_count: u32, max_len: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(domain_count), 1..max_len)
}

fn op(domain_count: u32) -> impl Strategy<Value = Op> {
    prop_oneof![
        50 => ask(domain_count).prop_map(Op::Allocate),
        36 => any::<usize>().prop_map(|pick| Op::Free { pick }),
        3 => any::<usize>().prop_map(|pick| Op::FreeAgain { pick }),
        2 => (0_u32..64, any::<u32>()).prop_map(|(index, generation)| Op::FreeUnknown { index, generation }),
        1 => Just(Op::FailNextAcquire),
        2 => any::<bool>().prop_map(|device_keeps| Op::ReleaseFreeRegions { device_keeps }),
        1 => prop::option::of(0_u64..300_000).prop_map(|limit_bytes| Op::SetLimit { limit_bytes }),
        1 => Just(Op::ResetPeak),
        1 => Just(Op::ResetAccumulated),
    ]
}

fn ask(domain_count: u32) -> impl Strategy<Value = Ask> {
    let domain = (0..domain_count).prop_map(DomainId);
    let domains = prop::collection::vec(domain, 1..5);
    (sizes(), any::<bool>(), domains, prop::bool::weighted(0.85)).prop_map(
        |(requested_bytes, interleave, domains, tensor)| Ask {
            requested_bytes,
            policy: if interleave && domains.len() > 1 {
                PlacementPolicy::Interleave
            } else {
                PlacementPolicy::Bind
            },
            domains,
            memory_type: if tensor { MemoryType::Tensor } else { MemoryType::Program },
        },
    )
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 1_u64..1_000,
        8 => 1_000_u64..20_000,
        2 => 20_000_u64..80_000,
        // Around multiples of the unit.
        4 => (1_u64..64, 0_u64..3).prop_map(|(units, off)| units * 128 + off - 1),
        // Beyond any region, up to what only just does not overflow.
        1 => prop_oneof![Just(1 << 39), Just(1 << 62), 200_000_u64..1_000_000],
    ]
}
