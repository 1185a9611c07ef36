//! Making, sharing and releasing allocators, and what is asked of a whole allocator.

use flex::{AllocatorOptions, FlexAllocator as Allocator, RegionOrder, Topology};
use flex_sim::{RegionIdScheme, SimulatedDevice, SimulatedOptions};

use crate::handles::Table;
use crate::out::{self, Out};
use crate::status::{Failure, FlexStatus, guarded, guarded_unlocked};
use crate::{fork, frame};

/// A handle to an allocator, counted. All 0 is no handle.
///
/// Allocations keep what they need of their allocator: they stay valid when its last handle is released.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlexAllocator {
    /// For comparing and storing only.
    pub id: u64,
}

/// Which region a request tries first.
pub type FlexRegionOrder = i32;
/// The one with the most free memory.
pub const FLEX_MOST_FREE: FlexRegionOrder = 0;
/// The one with the least that can serve: packs into few regions.
pub const FLEX_LEAST_FREE: FlexRegionOrder = 1;

/// A flag: fill fresh and freed blocks with a pattern, to find use of unset or freed memory. Slow.
pub const FLEX_POISON: u32 = 1;
/// A flag: name regions by an index, as the hardware does in VF mode, instead of by their base address.
pub const FLEX_REGION_INDEX: u32 = 2;

/// How an allocator is set up. All 0 is the default.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct FlexOptions {
    /// `FLEX_MOST_FREE` or `FLEX_LEAST_FREE`.
    pub region_order: FlexRegionOrder,
    /// Flags, added up.
    pub flags: u32,
}

/// What an allocator's handle names.
struct Entry {
    allocator: Allocator,
    /// How many releases it takes.
    references: u64,
}

static ALLOCATORS: Table<Entry> = Table::new(1);

const UNKNOWN: Failure = Failure::fixed(
    FlexStatus::FLEX_UNKNOWN_ALLOCATOR,
    c"the handle is of no allocator: released before, null, or garbage",
);

/// Makes a handle with one reference.
pub(crate) fn publish(allocator: Allocator) -> Result<FlexAllocator, Failure> {
    fork::watch()?;
    Ok(FlexAllocator { id: ALLOCATORS.insert(Entry { allocator, references: 1 })? })
}

/// The allocator that a handle names.
pub(crate) fn find(handle: FlexAllocator) -> Result<Allocator, Failure> {
    ALLOCATORS.with(handle.id, |entry| entry.allocator.clone()).ok_or(UNKNOWN)
}

/// Makes an allocator on a simulated device of its own with one tensor region of `capacity_bytes`, rounded down to 128,
/// and beside it a program region of a sixteenth of that, 64 MiB at most. Memory is committed when it is touched.
/// Release the handle with `flex_allocator_release`.
///
/// # Safety
/// `options` is null (the defaults) or valid for a read, `allocator` is null (an error) or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_allocator_create_uniform(
    capacity_bytes: u64,
    options: *const FlexOptions,
    allocator: *mut FlexAllocator,
) -> FlexStatus {
    // SAFETY: the caller's contract.
    guarded_unlocked(|| unsafe { create(|| Topology::uniform(capacity_bytes), options, allocator) })
}

/// Makes an allocator on a simulated device of its own with the hardware's layout: `max_regions` equal regions of at
/// most 16 GiB, spread evenly over `domain_count` domains, the first `program_regions` of domain 0 for programs and the
/// rest for tensors. The hardware has 7 regions, 1 domain, and 1 region for programs.
///
/// # Safety
/// `options` is null (the defaults) or valid for a read, `allocator` is null (an error) or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_allocator_create_spyre(
    total_bytes: u64,
    max_regions: u32,
    domain_count: u32,
    program_regions: u32,
    options: *const FlexOptions,
    allocator: *mut FlexAllocator,
) -> FlexStatus {
    let topology = || Topology::spyre_with_programs(total_bytes, max_regions, domain_count, program_regions);
    // SAFETY: the caller's contract.
    guarded_unlocked(|| unsafe { create(topology, options, allocator) })
}

/// # Safety
/// As for the functions above.
unsafe fn create(
    topology: impl FnOnce() -> Result<Topology, flex::FlexError>,
    options: *const FlexOptions,
    allocator: *mut FlexAllocator,
) -> Result<(), Failure> {
    // SAFETY: the caller's contract.
    let out = unsafe { Out::new(allocator, c"flex_allocator_create: allocator is null or misaligned") }?;
    // SAFETY: the caller's contract.
    let options = unsafe { out::copied(options, c"flex_allocator_create: options is misaligned") }?;
    let (options, region_ids) = read_options(options.unwrap_or_default())?;
    let topology = topology()?;
    let device = SimulatedDevice::new(SimulatedOptions {
        capacity_bytes: topology.total_bytes(),
        region_ids,
        ..SimulatedOptions::default()
    });
    let device = device.map_err(flex::FlexError::from)?;
    out.write(publish(Allocator::new(device, &topology, options)?)?);
    Ok(())
}

fn read_options(options: FlexOptions) -> Result<(AllocatorOptions, RegionIdScheme), Failure> {
    let region_order = match options.region_order {
        FLEX_MOST_FREE => RegionOrder::MostFree,
        FLEX_LEAST_FREE => RegionOrder::LeastFree,
        _ => {
            let text = c"the region order is neither FLEX_MOST_FREE nor FLEX_LEAST_FREE";
            return Err(Failure::invalid_argument(text));
        }
    };
    if options.flags & !(FLEX_POISON | FLEX_REGION_INDEX) != 0 {
        return Err(Failure::invalid_argument(c"flags has bits that mean nothing"));
    }
    let region_ids = match options.flags & FLEX_REGION_INDEX {
        0 => RegionIdScheme::BaseAddress,
        _ => RegionIdScheme::Index,
    };
    let poison = options.flags & FLEX_POISON != 0;
    Ok((AllocatorOptions { region_order, poison, ..AllocatorOptions::default() }, region_ids))
}

/// Adds a reference to a handle: it then takes one more release.
#[unsafe(no_mangle)]
pub extern "C" fn flex_allocator_retain(allocator: FlexAllocator) -> FlexStatus {
    guarded(|| ALLOCATORS.with(allocator.id, |entry| entry.references += 1).ok_or(UNKNOWN))
}

/// Gives up a reference to a handle. With the last one the handle is stale, and the allocator ends when its last
/// allocation is freed. In a pressure callback that has not unlocked, that happens when it does.
#[unsafe(no_mangle)]
pub extern "C" fn flex_allocator_release(allocator: FlexAllocator) -> FlexStatus {
    guarded(|| {
        let last = |entry: &mut Entry| {
            entry.references -= 1;
            entry.references == 0
        };
        frame::release(ALLOCATORS.take_if(allocator.id, last).ok_or(UNKNOWN)?);
        Ok(())
    })
}

/// Returns unused memory to where it came from: wholly free regions to the device, or the pages of free blocks to the
/// host. `returned_bytes` may be null.
///
/// # Safety
/// `returned_bytes` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_empty_cache(allocator: FlexAllocator, returned_bytes: *mut u64) -> FlexStatus {
    guarded_unlocked(|| {
        // SAFETY: the caller's contract.
        let out =
            unsafe { Out::optional(returned_bytes, c"flex_empty_cache: returned_bytes is misaligned") }?;
        let returned = find(allocator)?.empty_cache()?;
        if let Some(out) = out {
            out.write(returned);
        }
        Ok(())
    })
}

/// Checks every invariant of an allocator; `FLEX_CORRUPTED` names the first that does not hold. Walks all blocks.
#[unsafe(no_mangle)]
pub extern "C" fn flex_validate(allocator: FlexAllocator) -> FlexStatus {
    guarded_unlocked(|| Ok(find(allocator)?.validate()?))
}
