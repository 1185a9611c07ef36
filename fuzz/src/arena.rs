//! Operations on an allocator of a simulated device, compared with the naive model after each.
//!
//! The input is read while the run goes on, so that sizes can lie at the edges of what is free at that moment.

use arbitrary::{Result, Unstructured};
use flex::{DomainId, MemoryType, PlacementPolicy, RegionLayout, RegionOrder, Topology};

use crate::common::op::{Ask, Op};
use crate::driver::{Run, Setup};

/// Longer runs find little more and take longer: every step walks everything.
const MAX_STEPS: usize = 256;

/// The largest region of a device whose blocks are filled.
const POISONED_REGION_BYTES: u64 = 64 << 10;

/// Runs one input.
///
/// # Panics
/// If the allocator and the model disagree, an invariant is violated, or something is left at the end.
pub fn run(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let Ok(setup) = setup(&mut input) else { return };
    let mut run = Run::new(setup);
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        let Ok(op) = op(&mut input, &run) else { break };
        run.step(&op);
    }
    run.finish();
}

fn setup(input: &mut Unstructured<'_>) -> Result<Setup> {
    let options = input.arbitrary::<u8>()?;
    let poison = options & 0b111 == 0b111;
    Ok(Setup {
        topology: topology(input, poison)?,
        region_order: if options & 0x08 == 0 { RegionOrder::MostFree } else { RegionOrder::LeastFree },
        can_release: options & 0x30 != 0x30,
        poison,
        magazines: options & 0x40 != 0,
    })
}

fn topology(input: &mut Unstructured<'_>, poison: bool) -> Result<Topology> {
    let mut regions = Vec::new();
    for slot in 0..input.int_in_range(1..=5)? {
        let kind = input.arbitrary::<u8>()?;
        let size_bytes = 128 + u64::from(input.arbitrary::<u16>()?);
        // A region needs some MiB before it has a zone for small blocks.
        let size_bytes = if kind & 0x0c == 0 { size_bytes << 12 } else { size_bytes };
        regions.push(RegionLayout {
            domain: DomainId(u32::from(kind & 3) % 3),
            // The first is for tensors: a device needs one such region.
            memory_type: if slot > 0 && kind & 0x30 == 0 { MemoryType::Program } else { MemoryType::Tensor },
            size_bytes: if poison { size_bytes.min(POISONED_REGION_BYTES) } else { size_bytes },
        });
    }
    Ok(Topology::custom(regions).expect("regions of at least a unit"))
}

fn op(input: &mut Unstructured<'_>, run: &Run) -> Result<Op> {
    let pick = |input: &mut Unstructured<'_>| input.arbitrary::<u8>().map(usize::from);
    Ok(match input.int_in_range(0..=63_u8)? {
        0..=23 => Op::Allocate(ask(input, run)?),
        24..=27 => Op::AllocateNear { ask: ask(input, run)?, pick: pick(input)? },
        28..=45 => Op::Free { pick: pick(input)? },
        46..=49 => Op::FreeWhileLocked { pick: pick(input)? },
        50..=52 => Op::FreeAgain { pick: pick(input)? },
        53 => Op::FreeUnknown { index: pick(input)? as u32, generation: input.arbitrary::<u32>()? },
        54 => Op::FailNextAcquire,
        55..=56 => Op::ReleaseFreeRegions { device_keeps: input.arbitrary::<bool>()? },
        57..=58 => Op::SetLimit { limit_bytes: Some(size(input, run, MemoryType::Tensor)?) },
        59..=60 => Op::SetLimit { limit_bytes: None },
        61 => Op::ResetPeak,
        _ => Op::ResetAccumulated,
    })
}

/// Now and then one that contradicts itself, or names a domain that is not there.
fn ask(input: &mut Unstructured<'_>, run: &Run) -> Result<Ask> {
    let kind = input.arbitrary::<u8>()?;
    let memory_type = if kind & 0x0e == 0 { MemoryType::Program } else { MemoryType::Tensor };
    let policy = if kind & 0x11 == 0 { PlacementPolicy::Interleave } else { PlacementPolicy::Bind };
    let listed = match kind >> 5 {
        0 => 4,
        1 => 2,
        2 => 3,
        3 if kind & 0x0f == 5 => 0,
        _ => 1,
    };
    let there = run.topology().domain_count();
    let domain = |number: u8| DomainId(if number == u8::MAX { there } else { u32::from(number) % there });
    let domains = (0..listed).map(|_| input.arbitrary::<u8>().map(domain)).collect::<Result<Vec<_>>>()?;
    Ok(Ask { requested_bytes: size(input, run, memory_type)?, policy, domains, memory_type })
}

/// Sizes at the edges: of units, of what is free and of its largest piece, of regions, and of 64 bits.
fn size(input: &mut Unstructured<'_>, run: &Run, memory_type: MemoryType) -> Result<u64> {
    let kind = input.int_in_range(0..=15_u8)?;
    let edge = if kind < 14 { u64::from(input.arbitrary::<u8>()?) } else { 0 };
    let off_by = |bytes: u64| (bytes + edge % 3).wrapping_sub(1);
    let statistics = run.model().statistics();
    let (free_bytes, largest_bytes) = match memory_type {
        MemoryType::Tensor => (statistics.free_bytes, statistics.largest_free_bytes),
        MemoryType::Program => (statistics.program.free_bytes, statistics.program.free_bytes),
    };
    let regions = run.topology().regions();
    Ok(match kind {
        0..=4 => off_by(128 * (1 + edge / 3)),
        5..=6 => 1 + u64::from(input.arbitrary::<u16>()?),
        7..=8 => 128 * (1 + u64::from(input.arbitrary::<u16>()?)),
        9 => off_by(largest_bytes),
        10 => off_by(largest_bytes / (2 + edge / 3 % 4)),
        11 => off_by(free_bytes / (1 + edge / 3 % 3)),
        12 => off_by(regions[usize::from(edge as u8) / 3 % regions.len()].usable_bytes()),
        // Extents of the zones: a 1024th of a region.
        13 => off_by(regions[0].usable_bytes() / 1024 * (1 + edge / 3 % 9) / 8),
        14 => *input.choose(&[0, 1, 1 << 39, (1 << 39) - 128, 1 << 62])?,
        _ => u64::MAX - 128 * u64::from(input.arbitrary::<u8>()?),
    })
}
