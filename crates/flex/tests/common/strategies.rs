//! How the property tests draw devices and operations.

use flex::{DomainId, MemoryType, PlacementPolicy, RegionLayout, Topology};
use proptest::prelude::*;

use super::op::{Ask, Op};

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
        46 => ask(domain_count).prop_map(Op::Allocate),
        4 => (ask(domain_count), any::<usize>()).prop_map(|(ask, pick)| Op::AllocateNear { ask, pick }),
        32 => any::<usize>().prop_map(|pick| Op::Free { pick }),
        4 => any::<usize>().prop_map(|pick| Op::FreeWhileLocked { pick }),
        3 => any::<usize>().prop_map(|pick| Op::FreeAgain { pick }),
        2 => (0_u32..64, any::<u32>()).prop_map(|(index, generation)| Op::FreeUnknown { index, generation }),
        1 => Just(Op::FailNextAcquire),
        2 => any::<bool>().prop_map(|device_keeps| Op::ReleaseFreeRegions { device_keeps }),
        2 => (0_u64..4_000).prop_map(|minimum_bytes| Op::Trim { minimum_bytes }),
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
