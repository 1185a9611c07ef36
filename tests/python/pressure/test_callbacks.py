"""Memory-pressure callbacks in Python, through `torch_spyre.flex`: one that raises, one that is replaced or removed
while it runs. Those in Rust are in crates/flex/tests, those in C and C++ in crates/flex-c/tests."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable

import pytest

from pressure_tools import MIB, repeat, run_threads, running
from torch_spyre import flex

pytestmark = pytest.mark.pressure

Callback = Callable[[flex.PressureRequest], object]


@pytest.fixture
def allocator() -> flex.FlexAllocator:
    return flex.FlexAllocator.simulated(4 * MIB)


def allocated(allocator: flex.FlexAllocator) -> int:
    allocator.validate()
    return allocator.stats()["allocated_bytes.all.current"]


class Raised(BaseException):
    """Asks the program to stop, as KeyboardInterrupt does."""


@pytest.mark.scenario(12)
@pytest.mark.parametrize("frees", [False, True])
@pytest.mark.parametrize("kind", [ValueError, Raised, KeyboardInterrupt, SystemExit])
def test_callback_that_raises(allocator: flex.FlexAllocator, kind: type[BaseException], frees: bool) -> None:
    """The mutex is usable afterwards and nothing leaks, whether or not it had made room."""
    held = [allocator.allocate(MIB) for _ in range(4)]
    calls: list[int] = []
    unraisable: list[object] = []

    def failing(request: flex.PressureRequest) -> None:
        calls.append(request.attempt)
        if frees:
            held.clear()
        raise kind("in the callback")

    allocator.set_memory_pressure_callback(failing)
    if kind is not ValueError:
        with pytest.raises(kind):
            allocator.allocate(2 * MIB)
    elif frees:
        previous, sys.unraisablehook = sys.unraisablehook, lambda report: unraisable.append(report.exc_value)
        try:
            assert allocator.allocate(2 * MIB).nbytes == 2 * MIB
        finally:
            sys.unraisablehook = previous
        assert [str(error) for error in unraisable] == ["in the callback"]
    else:
        with pytest.raises(flex.OutOfMemoryError) as caught:
            allocator.allocate(2 * MIB)
        assert isinstance(caught.value.__cause__, kind)
        del caught
    assert calls == [1]
    assert allocator.stats()["num_alloc_retries"] == 1
    held.clear()
    assert allocated(allocator) == 0
    allocator.set_memory_pressure_callback(None)
    assert allocator.allocate(4 * MIB).nbytes == 4 * MIB


@pytest.mark.scenario(12)
def test_callbacks_that_raise_on_eight_threads(allocator: flex.FlexAllocator) -> None:
    """Each thread gets what its own callback raised."""
    held = allocator.allocate(4 * MIB)

    def failing(_: flex.PressureRequest) -> None:
        raise Raised(threading.get_ident())

    allocator.set_memory_pressure_callback(failing)

    def work() -> None:
        with pytest.raises(Raised) as caught:
            allocator.allocate(MIB)
        assert caught.value.args == (threading.get_ident(),)

    run_threads(8, lambda: repeat(20, work))
    assert allocator.stats()["num_alloc_retries"] == 160
    held.free()
    assert allocated(allocator) == 0


@pytest.mark.scenario(13)
@pytest.mark.parametrize("replace", [False, True], ids=["removed", "replaced"])
def test_callback_replaced_or_removed_while_it_runs(allocator: flex.FlexAllocator, replace: bool) -> None:
    """The request that runs it ends with it; later ones use what came after."""
    inside, go_on = threading.Event(), threading.Event()
    cache: list[flex.Allocation] = []
    calls: list[str] = []

    def allocate() -> None:
        cache.extend(allocator.allocate(MIB) for _ in range(4))  # Its own: a free-threaded build frees those at once.
        allocator.allocate(2 * MIB).free()

    def make_first() -> tuple[Callback, weakref.ref[Callback]]:
        def first(_: flex.PressureRequest) -> bool:
            calls.append("first")
            inside.set()
            go_on.wait()
            cache.clear()
            return False

        return first, weakref.ref(first)

    def second(_: flex.PressureRequest) -> None:
        calls.append("second")

    first, gone = make_first()
    assert allocator.set_memory_pressure_callback(first) is None
    with running(allocate):
        inside.wait()
        assert allocator.set_memory_pressure_callback(second if replace else None) is first
        del first
        with pytest.raises(flex.OutOfMemoryError):
            allocator.allocate(2 * MIB)
        assert gone() is not None, "it lives as long as it runs"
        go_on.set()
    assert calls == (["first", "second"] if replace else ["first"])
    gc.collect()
    assert gone() is None
    assert allocated(allocator) == 0


@pytest.mark.scenario(13)
def test_callback_that_replaces_itself(allocator: flex.FlexAllocator) -> None:
    cache = [allocator.allocate(4 * MIB)]

    def first(_: flex.PressureRequest) -> None:
        assert allocator.set_memory_pressure_callback(None) is first
        cache.clear()

    allocator.set_memory_pressure_callback(first)
    kept = allocator.allocate(MIB)
    with pytest.raises(flex.OutOfMemoryError):
        allocator.allocate(4 * MIB)
    kept.free()
    assert allocated(allocator) == 0


@pytest.mark.scenario(13)
def test_callbacks_replaced_all_the_time(allocator: flex.FlexAllocator) -> None:
    """Four threads are under pressure while a fifth replaces and removes the callback."""
    cache: list[flex.Allocation] = []
    outcomes: list[bool] = []
    done = threading.Event()

    def make() -> Callback:
        return lambda _: cache.clear()

    def replace() -> None:
        while not done.is_set():
            allocator.set_memory_pressure_callback(make())
            allocator.set_memory_pressure_callback(None)

    def work() -> None:
        for _ in range(300):
            try:
                cache.append(allocator.allocate(MIB // 4))
                outcomes.append(True)
            except flex.OutOfMemoryError:
                outcomes.append(False)
                cache.clear()

    with running(replace):
        try:
            run_threads(4, work)
        finally:
            done.set()
    assert len(outcomes) == 1200
    assert allocator.stats()["num_alloc_retries"] >= max(1, outcomes.count(False))
    cache.clear()
    assert allocated(allocator) == 0
