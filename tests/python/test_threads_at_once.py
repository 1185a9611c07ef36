"""What several Python threads do to one object at the same moment. On a free-threaded interpreter they really do."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from conftest import FREE_THREADED, RunScript
from pressure_tools import MIB, Background, Counters, block, free_bytes, make_garbage, memory, repeat, run_threads
from torch_spyre import flex


@pytest.fixture
def counters() -> Iterator[Counters]:
    gc.collect()
    gc.disable()
    yield Counters()
    gc.enable()
    gc.collect()


def test_importing_leaves_the_gil_as_it_is(run_script: RunScript) -> None:
    script = """
    import sys
    is_enabled = getattr(sys, "_is_gil_enabled", lambda: True)
    before = is_enabled()
    import torch, torch_spyre
    assert torch.ones(2, device="spyre").sum().item() == 2
    print(before, is_enabled())
    """
    result = run_script(script)
    assert result.check() == f"{not FREE_THREADED} {not FREE_THREADED}\n"
    assert result.err == ""


@pytest.mark.pressure
def test_tensors_dropped_by_another_thread_than_their_maker(counters: Counters) -> None:
    """Without a GIL the maker's share of the references may be counted only when it runs, or in a collection."""
    made, done = threading.Event(), threading.Event()
    tensors: list[torch.Tensor] = []

    def make() -> None:
        tensors.extend(block() for _ in range(60))
        made.set()
        done.wait()

    maker = threading.Thread(target=make)
    maker.start()
    made.wait()
    tensors.clear()
    try:
        block(32 * MIB)
    finally:
        done.set()
        maker.join()
    assert counters["events"] == counters["rescued"] <= FREE_THREADED
    assert free_bytes() >= 60 * MIB


@pytest.mark.pressure
def test_hooks_come_and_go_while_requests_call_them(counters: Counters) -> None:
    cache: list[torch.Tensor] = []

    def come_and_go() -> None:
        with memory.register_pressure_hook(lambda _: None):
            pass

    def fill_and_drop() -> None:
        with pytest.raises(torch.OutOfMemoryError):
            repeat(70, lambda: cache.append(block()))
        cache.clear()
        repeat(70, make_garbage)

    with Background(come_and_go) as first, Background(come_and_go) as second:
        repeat(5, fill_and_drop)
    assert min(first.steps, second.steps) > 0
    assert counters["failed"] == 5
    assert counters["rescued"] > 0
    assert counters["events"] == counters["rescued"] + counters["failed"]
    assert counters["hooks.failed"] == 0


Callback = Callable[[object], object] | None


def set_one_of(allocator: flex.FlexAllocator, callbacks: list[Callback]) -> None:
    allocator.set_memory_pressure_callback(callbacks.pop())


def test_a_callback_is_set_and_removed_at_once() -> None:
    """Whichever was last: what the allocator says is set is what it calls."""
    called: list[object] = []
    for _ in range(300):
        allocator = flex.FlexAllocator.simulated(MIB)
        run_threads(2, partial(set_one_of, allocator, [called.append, None]))
        live = allocator.allocate(MIB)
        called.clear()
        with pytest.raises(flex.OutOfMemoryError):
            allocator.allocate(MIB)
        assert len(called) == (allocator.set_memory_pressure_callback(None) is not None)
        live.free()


def use_and_free(allocation: flex.Allocation, freed: list[bool]) -> None:
    try:
        with memoryview(allocation) as view:
            view[0] = 1
            with pytest.raises(BufferError):
                allocation.free()
        allocation.free()
        freed.append(True)
    except BufferError:
        pass  # Another thread has its buffer.
    except flex.UnknownAllocationError:
        pass  # Another thread has freed it.


def test_an_allocation_is_freed_once_and_never_under_a_buffer() -> None:
    allocator = flex.FlexAllocator.simulated(MIB)
    freed: list[bool] = []

    for _ in range(100):
        allocation = allocator.allocate(1000)
        freed.clear()
        run_threads(4, partial(use_and_free, allocation, freed))
        if not freed:
            allocation.free()
        assert len(freed) <= 1
        assert allocator.stats()["allocated_bytes.all.current"] == 0
        allocator.validate()
