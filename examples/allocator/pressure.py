"""The allocator by itself: a buffer, placement in domains, and a memory-pressure callback that makes room."""

from torch_spyre import flex

KIB = 1 << 10

allocator = flex.FlexAllocator.simulated(1 << 20)

with allocator.allocate(4 * KIB) as block:
    memory = memoryview(block)
    memory[:5] = b"spyre"
    print(f"the block of {block.nbytes} bytes begins with", bytes(memory[:5]))
    memory.release()  # a block is not freed while its memory is looked at

cache = [allocator.allocate(64 * KIB) for _ in range(4)]


def drop_cache(request: flex.PressureRequest) -> bool:
    """Called with no lock held, when nothing fits; True asks for another search."""
    print(f"{request.requested_bytes // KIB} KiB wanted, {request.free_bytes // KIB} KiB free: {request.cause}")
    had_some = bool(cache)
    cache.clear()
    return had_some


allocator.set_memory_pressure_callback(drop_cache)
allocator.allocate(900 * KIB).free()
try:
    allocator.allocate(4 << 20)
except flex.OutOfMemoryError as error:
    print(error)

# Hardware has several memory channels. An interleaved allocation has a part in each of the domains it names.
channels = flex.FlexAllocator.simulated(1 << 20, topology=flex.Topology.spyre(1 << 20, max_regions=4, domains=2))
both = flex.AllocationDirective(flex.PlacementPolicy.Interleave, domains=[0, 1])
halves = channels.allocate(10_000, both)
print([(size, domain) for _region_id, _offset, size, domain in halves.chunks])
