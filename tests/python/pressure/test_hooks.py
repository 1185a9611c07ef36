"""User hooks: when they run, in which order, on which thread, and what a hook may do."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

from pressure_tools import MIB, Counters, Node, block, fill, fits, make_garbage, memory, repeat, run_threads, testing

if TYPE_CHECKING:
    from torch_spyre._C import PressureEvent

register = memory.register_pressure_hook

pytestmark = [pytest.mark.pressure, pytest.mark.scenario(21)]


def test_hook_gives_up_a_cache(counters: Counters, cache: list[torch.Tensor]) -> None:
    events: list[PressureEvent] = []

    def give_up(event: PressureEvent) -> str:
        events.append(event)
        cache.clear()
        return "a hook's answer means nothing"

    with register(give_up):
        block(8 * MIB)
    (event,) = events
    assert (event.device, event.requested_bytes) == (0, 8 * MIB)
    # A block that was small before may divide what is left.
    assert event.largest_free_bytes < MIB
    assert event.largest_free_bytes <= event.free_bytes < 2 * MIB
    assert (event.attempt, event.cause) == (1, "exhausted")
    counters.check_all_rescued()
    assert (counters["hooks.run"], counters["hooks.failed"]) == (1, 0)
    fill(cache)
    with pytest.raises(torch.OutOfMemoryError):
        block(8 * MIB)  # Removed at the end of the block.
    assert counters["hooks.run"] == 1


def test_collection_comes_first(counters: Counters) -> None:
    calls: list[object] = []
    with register(calls.append):
        repeat(200, make_garbage)
    counters.check_all_rescued()
    assert calls == []


def test_priorities_and_a_search_after_each(counters: Counters, cache: list[torch.Tensor]) -> None:
    order: list[str] = []

    def gives(_: object) -> None:
        order.append("gives")
        cache.clear()

    handles = [
        register(lambda _: order.append("low"), priority=-1),
        register(lambda _: order.append("first"), priority=7),
        register(lambda _: order.append("second"), priority=7),
        register(gives),
    ]
    block(8 * MIB)
    for handle in handles:
        handle.remove()
        handle.remove()
    assert order == ["first", "second", "gives"]
    counters.check_all_rescued()


def test_fragmented(cache: list[torch.Tensor]) -> None:
    del cache[::2]
    causes: list[str] = []
    with register(lambda event: causes.append(event.cause)), pytest.raises(torch.OutOfMemoryError, match="fragmented"):
        block(8 * MIB)
    assert causes == ["fragmented"]


@pytest.mark.parametrize("policy", ["off", "respect_disable"])
def test_hooks_run_under_every_policy(counters: Counters, cache: list[torch.Tensor], policy: str) -> None:
    memory.set_pressure_policy(gc=policy)
    with register(lambda _: cache.clear()):
        block(8 * MIB)
    counters.check_all_rescued()
    assert counters.collections() == 0


def test_cyclic_cache_needs_a_collection_after_the_hook(counters: Counters) -> None:
    cache = []
    for _ in range(60):
        node = Node()
        node.tensor = block()
        cache.append(node)
    del node
    with register(lambda _: cache.clear()):
        block(32 * MIB)
    counters.check_all_rescued()
    assert counters["collections.full"] == 2


def test_hook_that_raises(counters: Counters, cache: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(report.exc_value))

    def failing(_: object) -> None:
        raise ValueError("from the hook")

    with register(failing, priority=1), register(lambda _: cache.clear()):
        block(8 * MIB)
    counters.check_all_rescued()
    assert (counters["hooks.run"], counters["hooks.failed"]) == (2, 1)
    assert [str(error) for error in reported] == ["from the hook"]


def interrupted(_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own handler, also where the tests run in the background with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_keyboard_interrupt_in_a_hook_is_raised_again(counters: Counters, cache: list[torch.Tensor]) -> None:
    """At the end: the hooks and finalizers that the request still runs do not swallow it."""

    def allocate() -> None:
        block(8 * MIB)
        for _ in range(10**6):  # The interrupt comes with the next bytecodes.
            pass

    with register(interrupted, priority=1), register(lambda _: cache.clear()), pytest.raises(KeyboardInterrupt):
        allocate()
    counters.check_all_rescued()
    assert (counters["hooks.run"], counters["hooks.failed"]) == (2, 1)


def test_hook_that_allocates_runs_no_hooks(counters: Counters, cache: list[torch.Tensor]) -> None:
    failures: list[str] = []

    def allocating(_: object) -> None:
        try:
            block(8 * MIB)
        except torch.OutOfMemoryError as error:
            failures.append(str(error))
        cache.clear()
        block(8 * MIB)

    with register(allocating):
        block(8 * MIB)
    assert len(failures) == 1
    assert "already inside a collection or handling memory pressure" in failures[0]
    assert counters["hooks.run"] == 1
    assert counters["collections.skipped.reentrant"] == 1


def test_hook_whose_thread_allocates_runs_no_hooks(counters: Counters, cache: list[torch.Tensor]) -> None:
    memory.set_pressure_policy(timeout_ms=1500)
    failures: list[str] = []

    def allocate() -> None:
        memory.set_pressure_policy(timeout_ms=100)
        try:
            block(8 * MIB)
        except torch.OutOfMemoryError as error:
            failures.append(str(error))

    def through_a_thread(_: object) -> None:
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()
        cache.clear()

    with register(through_a_thread):
        block(8 * MIB)
    assert len(failures) == 1
    assert counters["hooks.run"] == 1
    assert (counters["rescued"], counters["failed"]) == (1, 1)


def test_hook_that_lies(counters: Counters, cache: list[torch.Tensor]) -> None:
    with register(lambda _: True), pytest.raises(torch.OutOfMemoryError):
        block(8 * MIB)
    assert (counters["hooks.run"], counters["failed"]) == (1, 1)
    assert not fits(MIB)


def test_hook_that_removes_itself_and_others(counters: Counters, cache: list[torch.Tensor]) -> None:
    called: list[str] = []

    def first(_: object) -> None:
        called.append("first")
        one.remove()
        two.remove()

    one = register(first, priority=1)
    two = register(lambda _: called.append("second"))
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            block(8 * MIB)
    assert called == ["first"]
    assert counters["hooks.run"] == 1
    assert not fits(MIB)


@pytest.mark.parametrize("is_cyclic", [False, True])
def test_hooks_of_four_threads_run_one_at_a_time(counters: Counters, is_cyclic: bool) -> None:
    """Those who wait for the run of another are served too, if need be by the collection that follows it."""
    cache = [Node() for _ in range(56)]
    for node in cache:
        node.tensor = block()
        if not is_cyclic:
            del node.me
    del node
    running = threading.Semaphore(1)
    overlaps: list[str] = []

    def give_up(_: object) -> None:
        if not running.acquire(blocking=False):
            overlaps.append("two hooks at once")
            return
        cache.clear()
        running.release()

    with register(give_up):
        # Each asks for more than the cache leaves; all four fit at once.
        run_threads(4, lambda: repeat(20, lambda: make_garbage(12 * MIB)))
    counters.check_all_rescued()
    assert overlaps == []
    assert counters["hooks.run"] >= 1


def test_hook_runs_for_native_and_attached_threads(counters: Counters) -> None:
    threads: list[int] = []
    cache: list[torch.Tensor] = []

    def give_up(_: object) -> None:
        threads.append(threading.get_ident())
        cache.clear()

    with register(give_up):
        fill(cache)
        assert testing.allocate_attached(0, 8 * MIB) is None
        fill(cache)
        assert testing.allocate_native(0, 8 * MIB, 1, 1) == []
    counters.check_all_rescued()
    assert threads[0] == threading.get_ident()
    assert threads[1] != threading.get_ident()


def test_hook_past_the_deadline_is_left_behind(counters: Counters, cache: list[torch.Tensor]) -> None:
    release = threading.Event()

    def stuck(_: object) -> None:
        release.wait()

    errors: list[str] = []
    with register(stuck):
        timeout_ms = 300
        while counters["hooks.run"] == 0:  # On a busy machine the deadline may pass before the hook is called.
            memory.set_pressure_policy(timeout_ms=timeout_ms)
            errors += testing.allocate_native(0, 8 * MIB, 1, 1)
            timeout_ms *= 2
        memory.set_pressure_policy(timeout_ms=3_600_000)
        errors += testing.allocate_native(0, 8 * MIB, 1, 1)  # Does not wait for the other one's hook.
        assert counters["hooks.run"] == 1
        release.set()
    assert all("spyre out of memory" in error for error in errors)
    cache.clear()
    assert testing.allocate_native(0, 8 * MIB, 1, 1) == []
    assert counters["failed"] == len(errors) >= 2


def test_bad_hooks() -> None:
    with pytest.raises(TypeError, match="fn=3 is not callable"):
        register(3)
    with pytest.raises(TypeError, match=r"priority=1\.5 is not an int"):
        register(print, priority=1.5)
    with pytest.raises(ValueError, match="out of range"):
        register(print, priority=2**63)
