"""What a finalizer may do in the middle of a collection that a request asked for.

Each runs where the request's own thread collects, and where the collector thread does because there are other threads.
What never returns, and what forks, is in test_exit.py and test_fork.py.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch

from conftest import FREE_THREADED
from pressure_tools import (
    KIB,
    MIB,
    Counters,
    Node,
    another_thread,
    block,
    fill_with_garbage,
    memory,
    running,
    testing,
)

pytestmark = [pytest.mark.pressure, pytest.mark.scenario(6)]


@pytest.fixture(params=["requester", "collector thread"], autouse=True)
def who_collects(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where finalizers run."""
    with another_thread() if request.param == "collector thread" else nullcontext():
        yield request.param


REQUESTER = threading.get_ident()
"""The thread that runs the tests."""


def wait_for_another_request() -> None:
    """In a finalizer: until a request waits at the gate besides the one that the collection runs for."""
    testing.wait_for_gate(1 if threading.get_ident() == REQUESTER else 2)


def press_with_finalizer(finalizer: Callable[[], object], nbytes: int = 8 * MIB) -> torch.Tensor:
    """Fills the device with garbage, one of which has this finalizer, and allocates."""

    class Finalized(Node):
        def __del__(self) -> None:
            finalizer()

    fill_with_garbage()
    Finalized()
    return block(nbytes)


def test_it_runs_on_the_thread_that_collects(counters: Counters, who_collects: str) -> None:
    threads: list[int] = []
    press_with_finalizer(lambda: threads.append(threading.get_ident()))
    counters.check_all_rescued()
    (thread,) = threads
    if who_collects == "collector thread":
        assert thread != threading.get_ident()


def test_it_allocates_beyond_exhaustion(counters: Counters) -> None:
    failures: list[str] = []

    def greedy() -> None:
        try:
            block(60 * MIB)
        except torch.OutOfMemoryError as error:
            failures.append(str(error))

    live = block(40 * MIB)
    press_with_finalizer(greedy, 4 * MIB)
    del live
    (text,) = failures
    assert "Python GC did not run: this thread is already inside a collection" in text
    assert counters["collections.skipped.reentrant"] == counters["failed"] == 1
    assert counters["events"] == counters["rescued"] + 1
    assert counters["rescued"] >= 1


def test_it_allocates_what_fits(counters: Counters) -> None:
    made: list[torch.Tensor] = []

    class Modest(Node):
        def __del__(self) -> None:
            made.append(torch.ones(1000, device="spyre"))

    room = block(64 * KIB)
    fill_with_garbage(64 * KIB)
    Modest()
    del room
    block(8 * MIB)
    counters.check_all_rescued()
    assert made[0].sum().item() == 1000.0
    made.clear()  # Without a GIL the class may live for ever, with what its method refers to.


def test_it_frees(counters: Counters) -> None:
    cache: list[torch.Tensor] = []

    class Owner(Node):
        def __del__(self) -> None:
            cache.clear()

    cache.extend(block() for _ in range(60))
    Owner()
    block(32 * MIB)
    counters.check_all_rescued()
    assert cache == []
    # Without a GIL some of it dies on the thread that made it, outside of the collection.
    assert counters["reclaimed_bytes"] >= (1 if FREE_THREADED else 60) * MIB


def test_it_raises(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(str(report.exc_value)))

    def failing() -> None:
        raise ValueError("from the finalizer")

    press_with_finalizer(failing)
    counters.check_all_rescued()
    assert reported == ["from the finalizer"]


def test_it_spawns_a_thread_that_is_rescued_too(counters: Counters) -> None:
    """The new thread is under pressure while the collection that began it still runs: it waits for that."""
    outcome: list[object] = []
    live = block(52 * MIB)

    def allocate() -> None:
        outcome.append(block(10 * MIB).numel())

    spawned = threading.Thread(target=allocate)

    def spawn() -> None:
        spawned.start()
        wait_for_another_request()

    press_with_finalizer(spawn, 2 * MIB)
    spawned.join()
    del live
    assert outcome == [10 * MIB]
    counters.check_all_rescued()
    assert counters["events"] >= 2


def test_it_joins_a_thread_that_waits_for_it(counters: Counters) -> None:
    """That thread's deadline ends the wait."""
    failures: list[str] = []

    def allocate() -> None:
        try:
            block(60 * MIB)
        except torch.OutOfMemoryError as error:
            failures.append(str(error))

    def spawn_and_join() -> None:
        memory.set_pressure_policy(timeout_ms=100)
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()

    live = block(40 * MIB)
    press_with_finalizer(spawn_and_join, 4 * MIB)
    del live
    (text,) = failures
    assert "no collection could run before the deadline" in text
    assert counters["failed"] == counters["collections.skipped.timeout"] == 1
    assert counters["collectors_abandoned"] == 0
    assert counters["rescued"] >= 1


def test_it_wants_a_lock_whose_owner_waits(counters: Counters) -> None:
    """The owner waits in the allocator for the very collection that wants the lock: its deadline ends that."""
    lock = threading.Lock()
    in_finalizer, finalized = threading.Event(), threading.Event()
    failures: list[str] = []

    def own_lock() -> None:
        in_finalizer.wait()
        with lock:
            memory.set_pressure_policy(timeout_ms=500)
            try:
                block(60 * MIB)
            except torch.OutOfMemoryError as error:
                failures.append(str(error))

    def want_lock() -> None:
        in_finalizer.set()
        wait_for_another_request()
        with lock:
            finalized.set()

    live = block(40 * MIB)
    with running(own_lock):
        press_with_finalizer(want_lock, 4 * MIB)
    del live
    (text,) = failures
    assert finalized.is_set()
    assert "no collection could run before the deadline" in text
    assert counters["failed"] == counters["collections.skipped.timeout"] == 1
    assert counters["rescued"] >= 1


def test_it_makes_garbage_for_ever(counters: Counters) -> None:
    """Each collection finds something, and nothing of the device: four in a row are enough."""
    going_on = [True]

    class Again(Node):
        def __del__(self) -> None:
            if going_on:
                Again()

    live = [block() for _ in range(62)]
    Again()
    with pytest.raises(torch.OutOfMemoryError, match="0 bytes reclaimed"):
        block(8 * MIB)
    going_on.clear()
    assert len(live) == 62
    assert counters["failed"] == counters["events"] == 1
    assert counters["collections.full"] == 4


def test_others_allocate_meanwhile(counters: Counters) -> None:
    """Other threads are not kept out by a collection: it goes on when they have allocated and freed."""
    in_finalizer, allocated = threading.Event(), threading.Event()

    def allocate() -> None:
        in_finalizer.wait()
        assert torch.ones(1000, device="spyre").sum().item() == 1000.0
        allocated.set()

    class Waiting(Node):
        def __del__(self) -> None:
            in_finalizer.set()
            allocated.wait()

    room = block(64 * KIB)
    fill_with_garbage(64 * KIB)
    Waiting()
    del room
    with running(allocate):
        block(8 * MIB)
    assert allocated.is_set()
    counters.check_all_rescued()
