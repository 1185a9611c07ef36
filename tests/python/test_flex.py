"""`torch_spyre.flex`: the allocator core from Python."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from torch_spyre import flex

MIB = 1 << 20


@pytest.fixture
def allocator() -> flex.FlexAllocator:
    return flex.FlexAllocator.simulated(4 * MIB)


def test_allocation_and_statistics(allocator: flex.FlexAllocator) -> None:
    allocation = allocator.allocate(1000)
    assert allocation.nbytes == len(allocation) == 1000
    ((_, offset, size, domain),) = allocation.chunks
    assert offset % 128 == 0
    assert offset + size <= 4 * MIB
    assert (size, domain) == (1024, 0)
    stats = allocator.stats()
    assert stats["allocated_bytes.all.current"] == 1024
    assert stats["requested_bytes.all.current"] == 1000
    assert stats["capacity_bytes"] == 4 * MIB
    assert stats["free_bytes"] == stats["largest_free_bytes"] == 4 * MIB - 1024
    allocation.free()
    assert allocator.stats()["allocated_bytes.all.current"] == 0
    with pytest.raises(flex.UnknownAllocationError, match="has been freed"):
        allocation.free()
    with pytest.raises(flex.UnknownAllocationError, match="has been freed"):
        _ = allocation.chunks
    assert repr(allocation) == "<freed Allocation of 1000 bytes>"
    allocator.validate()


def test_with_block_frees(allocator: flex.FlexAllocator) -> None:
    with allocator.allocate(MIB) as allocation:
        assert allocation.nbytes == MIB
    assert allocator.stats()["allocation.all.current"] == 0
    with allocator.allocate(MIB) as allocation:
        allocation.free()
    assert allocator.stats()["allocation.all.freed"] == 2


def test_dropping_frees(allocator: flex.FlexAllocator) -> None:
    allocation = allocator.allocate(MIB)
    assert allocator.stats()["allocation.all.current"] == 1
    del allocation
    assert allocator.stats()["allocation.all.current"] == 0


def test_allocation_outlives_its_allocator() -> None:
    allocation = flex.FlexAllocator.simulated(MIB).allocate(128)
    memoryview(allocation)[:3] = b"abc"
    assert bytes(memoryview(allocation)[:3]) == b"abc"
    allocation.free()


def test_buffer_protocol(allocator: flex.FlexAllocator) -> None:
    allocation = allocator.allocate(100)
    view = memoryview(allocation)
    assert (view.nbytes, view.readonly, view.format) == (100, False, "B")
    view[:] = bytes(range(100))
    assert bytes(allocation) == bytes(range(100))
    with pytest.raises(BufferError, match=r"1 exported buffer\(s\)"):
        allocation.free()
    view.release()
    allocation.free()
    with pytest.raises(flex.UnknownAllocationError):
        memoryview(allocation)


def test_interleaved_allocation_has_no_buffer() -> None:
    topology = flex.Topology.spyre(16 * MIB, 8, 2)
    allocator = flex.FlexAllocator.simulated(16 * MIB, topology=topology)
    directive = flex.AllocationDirective(flex.PlacementPolicy.Interleave, [0, 1])
    allocation = allocator.allocate(1000, directive)
    assert [(size, domain) for _, _, size, domain in allocation.chunks] == [(512, 0), (512, 1)]
    with pytest.raises(BufferError, match="2 chunks has no single buffer"):
        memoryview(allocation)


def test_program_memory_is_apart(allocator: flex.FlexAllocator) -> None:
    program = allocator.allocate(1000, flex.AllocationDirective(memory_type=flex.MemoryType.Program))
    assert allocator.stats()["free_bytes"] == 4 * MIB, "programs do not use the memory of tensors"
    tensor = allocator.allocate(4 * MIB)
    assert program.chunks[0][0] != tensor.chunks[0][0]


def test_topologies() -> None:
    topology = flex.Topology.spyre(7 * MIB)
    assert topology.domain_count == 1
    assert [kind for _, kind, _ in topology.regions] == [flex.MemoryType.Program] + [flex.MemoryType.Tensor] * 6
    assert topology.tensor_capacity_bytes == 6 * MIB
    assert flex.Topology.uniform(1000).tensor_capacity_bytes == 896
    with pytest.raises(flex.RegionSetupError, match="7 regions cannot be divided evenly among 2 domains"):
        flex.Topology.spyre(7 * MIB, 7, 2)
    with pytest.raises(flex.RegionSetupError, match="0 domains"):
        flex.Topology.spyre(7 * MIB, 7, 0)
    with pytest.raises(flex.RegionSetupError, match="127 bytes"):
        flex.Topology.uniform(127)
    with pytest.raises(flex.DeviceError, match="does not fit"):
        flex.FlexAllocator.simulated(MIB, topology=flex.Topology.uniform(2 * MIB))


def test_directives() -> None:
    bind = flex.AllocationDirective()
    assert (bind.policy, bind.domains) == (flex.PlacementPolicy.Bind, [0])
    assert bind.memory_type == flex.MemoryType.Tensor
    with pytest.raises(flex.InvalidPlacementError, match="no domains"):
        flex.AllocationDirective(domains=[])
    with pytest.raises(flex.InvalidPlacementError, match=r"interleaving over 1 domain"):
        flex.AllocationDirective(flex.PlacementPolicy.Interleave, [0])
    assert flex.AllocationDirective(flex.PlacementPolicy.Interleave, [0, 0]).domains == [0, 0]


def test_what_things_look_like(allocator: flex.FlexAllocator) -> None:
    directive = flex.AllocationDirective(flex.PlacementPolicy.Interleave, [0, 1])
    assert repr(directive) == "<AllocationDirective: Interleave [0, 1], tensor memory>"
    assert repr(flex.Topology.spyre(7 * MIB)) == "<Topology of 7340032 bytes: 7 region(s) in 1 domain(s)>"
    kept = allocator.allocate(1000)
    assert repr(kept) == "<Allocation of 1000 bytes in 1 chunk(s)>"
    assert repr(allocator) == "<FlexAllocator: 1024 of 4194304 bytes allocated>"


def test_near() -> None:
    topology = flex.Topology.spyre(16 * MIB, 8, 2)
    allocator = flex.FlexAllocator.simulated(16 * MIB, topology=topology)
    there = allocator.allocate(128, flex.AllocationDirective(domains=[1]))
    near = flex.AllocationDirective(near=there)
    assert near.domains == [1]
    assert allocator.allocate(128, near).chunks[0][3] == 1
    assert flex.AllocationDirective(domains=[0], near=there).domains == [0]
    there.free()
    with pytest.raises(flex.InvalidPlacementError, match="no longer live"):
        flex.AllocationDirective(near=there)


def test_bad_requests(allocator: flex.FlexAllocator) -> None:
    with pytest.raises(flex.InvalidSizeError, match="0 bytes"):
        allocator.allocate(0)
    with pytest.raises(flex.InvalidSizeError, match=str(2**64 - 1)):
        allocator.allocate(2**64 - 1)
    with pytest.raises(OverflowError):
        allocator.allocate(-1)
    with pytest.raises(flex.UnknownDomainError, match="domain 3 does not exist"):
        allocator.allocate(128, flex.AllocationDirective(domains=[3]))
    assert issubclass(flex.UnknownDomainError, flex.FlexError)


def test_out_of_memory_has_figures(allocator: flex.FlexAllocator) -> None:
    held = allocator.allocate(3 * MIB)
    with pytest.raises(flex.OutOfMemoryError, match="2097152 bytes of tensor memory") as caught:
        allocator.allocate(2 * MIB)
    error = caught.value
    assert (error.requested_bytes, error.capacity_bytes) == (2 * MIB, 4 * MIB)
    assert (error.free_bytes, error.largest_free_bytes) == (MIB, MIB)
    held.free()
    allocator.allocate(2 * MIB)


def test_callback_that_frees_rescues(allocator: flex.FlexAllocator) -> None:
    cache = [allocator.allocate(MIB) for _ in range(4)]
    requests: list[flex.PressureRequest] = []

    def on_pressure(request: flex.PressureRequest) -> None:
        requests.append(request)
        cache.clear()

    assert allocator.set_memory_pressure_callback(on_pressure) is None
    assert allocator.allocate(2 * MIB).nbytes == 2 * MIB
    (request,) = requests
    assert (request.requested_bytes, request.free_bytes, request.largest_free_bytes) == (2 * MIB, 0, 0)
    assert (request.attempt, request.cause, request.domains) == (1, "exhausted", [0])
    assert allocator.set_memory_pressure_callback(None) is on_pressure
    assert allocator.set_memory_pressure_callback(None) is None


def test_callback_is_told_of_fragmentation(allocator: flex.FlexAllocator) -> None:
    blocks = [allocator.allocate(MIB) for _ in range(4)]
    blocks[0].free()
    blocks[2].free()
    causes: list[str] = []
    allocator.set_memory_pressure_callback(lambda request: causes.append(request.cause))
    with pytest.raises(flex.OutOfMemoryError):
        allocator.allocate(2 * MIB)
    assert causes == ["fragmented"]


def test_callback_is_called_again_while_it_returns_true(allocator: flex.FlexAllocator) -> None:
    cache = [allocator.allocate(MIB) for _ in range(4)]
    attempts: list[int] = []

    def one_at_a_time(request: flex.PressureRequest) -> bool:
        attempts.append(request.attempt)
        cache.pop()
        return True

    allocator.set_memory_pressure_callback(one_at_a_time)
    allocator.allocate(3 * MIB).free()
    assert attempts == [1, 2, 3]
    attempts.clear()
    cache.append(allocator.allocate(3 * MIB))

    def liar(request: flex.PressureRequest) -> bool:
        attempts.append(request.attempt)
        return True

    allocator.set_memory_pressure_callback(liar)
    with pytest.raises(flex.OutOfMemoryError):
        allocator.allocate(3 * MIB)
    assert attempts == list(range(1, 65)), "a callback that lies is not called for ever"


def test_callback_may_allocate(allocator: flex.FlexAllocator) -> None:
    cache = [allocator.allocate(4 * MIB)]
    nested: list[BaseException] = []

    def on_pressure(request: flex.PressureRequest) -> None:
        try:
            allocator.allocate(MIB)
        except flex.OutOfMemoryError as error:
            nested.append(error)
        cache.clear()
        allocator.allocate(MIB).free()

    allocator.set_memory_pressure_callback(on_pressure)
    allocator.allocate(MIB)
    assert len(nested) == 1, "exhausted inside the callback: fails at once, without calling it again"


def test_cycle_through_the_callback_is_collected() -> None:
    class Owner:
        allocator: flex.FlexAllocator

    def make_cycle() -> weakref.ref[Owner]:
        owner = Owner()
        owner.allocator = flex.FlexAllocator.simulated(MIB)
        owner.allocator.set_memory_pressure_callback(lambda request: owner)
        return weakref.ref(owner)

    gone = make_cycle()
    gc.collect()
    assert gone() is None


def test_callback_that_holds_an_allocation_goes_with_the_allocator() -> None:
    class Callback:
        held: flex.Allocation

        def __call__(self, request: flex.PressureRequest) -> None: ...

    def drop_all() -> weakref.ref[Callback]:
        allocator = flex.FlexAllocator.simulated(MIB)
        callback = Callback()
        callback.held = allocator.allocate(MIB)
        allocator.set_memory_pressure_callback(callback)
        return weakref.ref(callback)

    gone = drop_all()
    gc.collect()
    assert gone() is None


def test_bad_callback(allocator: flex.FlexAllocator) -> None:
    with pytest.raises(TypeError, match="invalid callback 3: expected a callable or None"):
        allocator.set_memory_pressure_callback(3)  # type: ignore[arg-type]


def test_threads_allocate_under_pressure(allocator: flex.FlexAllocator) -> None:
    """Each thread keeps a cache that any thread's pressure may empty."""
    cache: list[flex.Allocation] = []
    errors: list[BaseException] = []
    allocator.set_memory_pressure_callback(lambda request: cache.clear())

    def work() -> None:
        try:
            for _ in range(300):
                cache.append(allocator.allocate(256 * 1024))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert allocator.stats()["num_alloc_retries"] > 0
    cache.clear()
    allocator.validate()
    assert allocator.stats()["allocated_bytes.all.current"] == 0


def test_empty_cache_returns_memory(allocator: flex.FlexAllocator) -> None:
    allocation = allocator.allocate(MIB)
    memoryview(allocation)[:] = b"x" * MIB
    allocation.free()
    assert allocator.stats()["reserved_bytes.all.current"] == 4 * MIB
    assert allocator.empty_cache() >= 4 * MIB
    assert allocator.stats()["reserved_bytes.all.current"] == 0
    assert allocator.allocate(4 * MIB).nbytes == 4 * MIB
