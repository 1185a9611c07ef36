//! Allocating, freeing, and looking at an allocation.

use std::ffi::c_void;

use flex::{Chunk, CompositeAddress, FlexAllocator as Allocator};

use crate::allocator::{FlexAllocator, find};
use crate::directive::{self, FlexDirective};
use crate::frame;
use crate::handles::Table;
use crate::out::Out;
use crate::status::{Failure, FlexStatus, guarded, guarded_unlocked};

/// A handle to an allocation. All 0 is no handle. It is stale once the allocation is freed, for ever.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlexAllocation {
    /// For comparing and storing only.
    pub id: u64,
}

/// One contiguous part of an allocation.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlexChunk {
    /// The device's name for the region: its base address, or an index.
    pub region_id: u64,
    /// Where the chunk starts in the region, in bytes; a multiple of 128.
    pub offset_bytes: u64,
    /// Its size, a multiple of 128.
    pub size_bytes: u64,
    /// The domain it lies in.
    pub domain: u32,
}

/// The sizes of an allocation.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlexAllocationInfo {
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// Bytes taken: the sizes of the chunks together.
    pub size_bytes: u64,
    /// How many chunks there are: 1, or one for each domain if interleaved.
    pub chunk_count: usize,
}

/// What an allocation's handle names. Dropping it frees, which never blocks; dropping the last of an allocator also
/// ends that allocator, which may call the device and foreign code.
struct Entry {
    address: CompositeAddress,
    allocator: Allocator,
}

static ALLOCATIONS: Table<Entry> = Table::new(2);

const UNKNOWN: Failure = Failure::fixed(
    FlexStatus::FLEX_UNKNOWN_ALLOCATION,
    c"the handle is of no live allocation: freed before, null, or garbage",
);

/// The domains of a live allocation, in order.
pub(crate) fn near_domains(near: FlexAllocation) -> Option<flex::Domains> {
    ALLOCATIONS.with(near.id, |entry| entry.address.chunks().map(|chunk| chunk.domain).collect())
}

/// Allocates at least `bytes` bytes; each chunk is rounded up to 128. Free it with `flex_free`.
///
/// If the device is exhausted, the pressure callback of the allocator runs on this thread, and whatever that runs.
/// Hold no lock that such code could want.
///
/// # Safety
/// `directive` is null (bound to domain 0, for tensors) or valid for a read, and so are its domains for their count.
/// `allocation` is null (an error) or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_allocate(
    allocator: FlexAllocator,
    bytes: u64,
    directive: *const FlexDirective,
    allocation: *mut FlexAllocation,
) -> FlexStatus {
    guarded_unlocked(|| {
        // SAFETY: the caller's contract.
        let out = unsafe { Out::new(allocation, c"flex_allocate: allocation is null or misaligned") }?;
        let allocator = find(allocator)?;
        // SAFETY: the caller's contract.
        let directive = unsafe { directive::read(directive) }?;
        let address = allocator.allocate(bytes, &directive)?;
        out.write(FlexAllocation { id: ALLOCATIONS.insert(Entry { address, allocator })? });
        Ok(())
    })
}

/// Frees an allocation, on any thread. Never waits for the allocator mutex, and runs no pressure callback.
///
/// In a pressure callback that has not unlocked, the handle is stale at once and the memory is free when it unlocks.
#[unsafe(no_mangle)]
pub extern "C" fn flex_free(allocation: FlexAllocation) -> FlexStatus {
    guarded(|| {
        let entry = ALLOCATIONS.take(allocation.id).ok_or(UNKNOWN)?;
        if let Some(Entry { address, allocator }) = frame::keep_while_locked(entry) {
            let freed = address.free();
            drop(allocator);
            freed?;
        }
        Ok(())
    })
}

/// The sizes of an allocation.
///
/// # Safety
/// `info` is null (an error) or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_allocation_info(
    allocation: FlexAllocation,
    info: *mut FlexAllocationInfo,
) -> FlexStatus {
    guarded(|| {
        // SAFETY: the caller's contract.
        let out = unsafe { Out::new(info, c"flex_allocation_info: info is null or misaligned") }?;
        let found = ALLOCATIONS.with(allocation.id, |Entry { address, .. }| FlexAllocationInfo {
            requested_bytes: address.requested_bytes(),
            size_bytes: address.size_bytes(),
            chunk_count: address.chunks().len(),
        });
        out.write(found.ok_or(UNKNOWN)?);
        Ok(())
    })
}

/// One chunk of an allocation, by its place: from 0, in the order of the domains.
///
/// # Safety
/// `chunk` is null (an error) or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_chunk(
    allocation: FlexAllocation,
    index: usize,
    chunk: *mut FlexChunk,
) -> FlexStatus {
    guarded(|| {
        // SAFETY: the caller's contract.
        let out = unsafe { Out::new(chunk, c"flex_chunk: chunk is null or misaligned") }?;
        let chunk = chunk_of(allocation, index, |chunk, _| chunk)?;
        out.write(FlexChunk {
            region_id: chunk.address.region_id.0,
            offset_bytes: chunk.address.offset_bytes,
            size_bytes: chunk.size_bytes,
            domain: chunk.domain.0,
        });
        Ok(())
    })
}

/// The host's address of a chunk, valid until the allocation is freed. `FLEX_NOT_AVAILABLE` if the host cannot reach
/// the memory of the device; that of simulated devices it can.
///
/// # Safety
/// `address` is null (an error) or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flex_host_address(
    allocation: FlexAllocation,
    chunk_index: usize,
    address: *mut *mut c_void,
) -> FlexStatus {
    guarded_unlocked(|| {
        // SAFETY: the caller's contract.
        let out = unsafe { Out::new(address, c"flex_host_address: address is null or misaligned") }?;
        let (chunk, allocator) =
            chunk_of(allocation, chunk_index, |chunk, allocator| (chunk, allocator.clone()))?;
        let found = allocator.device().host_address(chunk.address);
        let unavailable = Failure::fixed(
            FlexStatus::FLEX_NOT_AVAILABLE,
            c"the host cannot reach the memory of this device",
        );
        out.write(found.ok_or(unavailable)? as *mut c_void);
        Ok(())
    })
}

/// What `look` makes of a chunk and its allocator, under the table's lock.
fn chunk_of<R>(
    allocation: FlexAllocation,
    index: usize,
    look: impl FnOnce(Chunk, &Allocator) -> R,
) -> Result<R, Failure> {
    let found = ALLOCATIONS.with(allocation.id, |Entry { address, allocator }| {
        address.chunks().nth(index).map(|chunk| look(chunk, allocator))
    });
    found.ok_or(UNKNOWN)?.ok_or(Failure::invalid_argument(c"the allocation has no chunk of that index"))
}
