"""The program's own collections: while one runs, CPython refuses another. A request waits for it, then collects.

That it waits is seen at the gate, not by the clock: the collection goes on only after the gate has reported a request
behind a foreign collection.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest
import torch

from conftest import RunScript
from pressure_tools import (
    MIB,
    Counters,
    Node,
    PausedCollection,
    Place,
    another_thread,
    block,
    fill_with_garbage,
    fits,
    make_garbage,
    memory,
    running,
    testing,
)

pytestmark = [pytest.mark.pressure, pytest.mark.scenario(19)]


def detached() -> None:
    block(8 * MIB)


def attached() -> None:
    assert testing.allocate_attached(0, 8 * MIB) is None


def native() -> None:
    assert testing.allocate_native(0, 8 * MIB, 1, 1) == []


@pytest.mark.parametrize("cleared", [False, True], ids=["", "cleared"])
@pytest.mark.parametrize("request_memory", [detached, attached, native])
@pytest.mark.parametrize(
    ("place", "phase"),
    [("finalizer", "start"), ("before", "start"), ("before", "stop"), ("after", "start"), ("after", "stop")],
)
def test_collection_paused_on_another_thread(
    counters: Counters, place: Place, phase: str, request_memory: Callable[[], None], cleared: bool
) -> None:
    """Cleared: someone empties `gc.callbacks` while the request waits, so nothing of ours sees the collection stop."""

    def resume_when_a_request_waits() -> None:
        try:
            testing.wait_for_gate(behind_foreign=True)
            if cleared:
                gc.callbacks.clear()
        finally:
            paused.resume()

    with PausedCollection(place, phase) as paused:
        fill_with_garbage()
        with running(resume_when_a_request_waits):
            request_memory()
    counters.check_all_rescued()
    assert counters["events"] == 1
    assert counters.collections() >= 1


def test_four_requests_wait_for_one_foreign_collection(counters: Counters) -> None:
    def resume_when_all_wait() -> None:
        try:
            testing.wait_for_gate(5, behind_foreign=True)  # The collector thread, and who asked or shares its flight.
        finally:
            paused.resume()

    live: list[torch.Tensor] = []
    with PausedCollection("finalizer") as paused:
        fill_with_garbage()
        requests = [threading.Thread(target=lambda: live.append(block(8 * MIB))) for _ in range(4)]
        with running(resume_when_all_wait):
            for request in requests:
                request.start()
            for request in requests:
                request.join()
    counters.check_all_rescued()
    assert len(live) == counters["events"] == 4
    assert counters["coalesced"] >= 1


def test_deadline_ends_the_wait(counters: Counters) -> None:
    attempts = 0
    # On a busy machine the first deadlines may pass before the collector thread has got as far as waiting.
    for timeout_ms in (100, 1_000, 10_000):
        attempts += 1
        abandoned = counters["collectors_abandoned"]
        memory.set_pressure_policy(timeout_ms=timeout_ms)
        with PausedCollection("finalizer"):
            fill_with_garbage()
            with pytest.raises(torch.OutOfMemoryError, match="no collection could run before the deadline"):
                block(8 * MIB)
        if counters["collectors_abandoned"] == abandoned:
            break
        while testing.census(0)["flights"]:
            time.sleep(0.01)
        gc.collect()
    else:
        pytest.fail("the collector thread was abandoned although it waited for the foreign collection")
    assert counters["failed"] == counters["collections.skipped.timeout"] == attempts
    memory.set_pressure_policy(timeout_ms=10_000)
    block(8 * MIB)
    assert counters["rescued"] == 1


def test_request_in_a_finalizer_of_the_programs_own_collection(counters: Counters) -> None:
    failures: list[str] = []

    class Greedy(Node):
        def __del__(self) -> None:
            while fits(MIB):
                make_garbage()
            try:
                block(60 * MIB)
            except torch.OutOfMemoryError as error:
                failures.append(str(error))

    Greedy()
    gc.collect()
    (text,) = failures
    assert "this thread is already inside a collection" in text
    assert counters["collections.skipped.reentrant"] == counters["failed"] == 1
    block(60 * MIB)
    counters.check_balanced()


def test_request_in_a_callback_of_the_programs_own_collection(fork_script: RunScript) -> None:
    """Before and after ours: the one before sees "start" too early for us, the one after "stop" too late. Then there is
    no other Python thread that could be collecting, autograd's workers included: hence a process of its own. On a
    free-threaded build that cannot be known, and the deadline ends it."""
    script = """
    def press(place, phase):
        once = [True]
        def callback(now, _):
            if now == phase and once:
                once.clear()
                while fits(MIB):
                    make_garbage()
                try:
                    block(60 * MIB)
                except torch.OutOfMemoryError as error:
                    print(place, phase, "already inside" if "already inside" in str(error) else str(error))
        gc.callbacks.insert(0 if place == "before" else len(gc.callbacks), callback)
        gc.collect()
        gc.callbacks.remove(callback)
        counters = memory.pressure_stats()
        assert counters["failed"] == counters["events"] == 1, counters
        assert sum(counters["collections.skipped." + reason] for reason in ("reentrant", "timeout")) == 1, counters
        block(60 * MIB)
        memory.reset_pressure_stats()

    for place in ("before", "after"):
        for phase in ("start", "stop"):
            press(place, phase)
    """
    lines = fork_script(script).check().splitlines()
    assert len(lines) == 4
    assert all(line.endswith("already inside") for line in lines), lines


def test_callbacks_cleared_in_a_collection_leave_no_mark(counters: Counters) -> None:
    """This thread once began a collection whose end nobody saw; now another thread is in the middle of one."""

    def clear(_phase: str, _info: object) -> None:
        gc.callbacks.clear()

    def resume_when_a_request_waits() -> None:
        try:
            testing.wait_for_gate(behind_foreign=True)
        finally:
            paused.resume()

    gc.callbacks.append(clear)
    gc.collect(0)
    with PausedCollection("finalizer") as paused:
        fill_with_garbage()
        with running(resume_when_a_request_waits):
            block()
    counters.check_all_rescued()


def test_callbacks_cleared_again_and_again(counters: Counters) -> None:
    """Each collection of ours puts its entries back, so each is known to have run."""
    with another_thread():
        for _ in range(5):
            fill_with_garbage()
            gc.callbacks.clear()
            block(8 * MIB)
    counters.check_all_rescued()
    assert counters["events"] == 5
    assert counters.collections() >= 5
