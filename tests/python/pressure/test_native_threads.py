"""Native threads, and threads that wait for them with the interpreter held: bounded, with a clear failure."""

from __future__ import annotations

import pytest

from pressure_tools import (
    KIB,
    MIB,
    OVERDUE_COLLECTION_GOES_ON,
    Background,
    Counters,
    block,
    fill_with_garbage,
    make_garbage,
    memory,
    testing,
)

pytestmark = pytest.mark.pressure


@pytest.mark.scenario(8)
def test_native_thread_joined_with_the_interpreter_held(counters: Counters) -> None:
    memory.set_pressure_policy(timeout_ms=100)
    fill_with_garbage()
    error, seconds = testing.join_native_attached(0, 8 * MIB)
    assert error is not None
    assert "no collection could run before the deadline" in error
    assert seconds >= 0.1
    assert counters["failed"] == counters["collections.skipped.timeout"] == 1
    # With a GIL the collector thread only waits for that; without one it collects, if it began before the deadline.
    assert counters["collectors_abandoned"] <= int(OVERDUE_COLLECTION_GOES_ON)
    memory.set_pressure_policy(timeout_ms=10_000)
    assert testing.allocate_native(0, 8 * MIB, 1, 1) == []
    assert counters["rescued"] == 1 or OVERDUE_COLLECTION_GOES_ON


@pytest.mark.scenario(8)
def test_lock_of_the_allocating_thread_wanted_by_the_interpreter_holder(counters: Counters) -> None:
    memory.set_pressure_policy(timeout_ms=100)
    fill_with_garbage()
    error, _ = testing.want_lock_of_allocating_thread(0, 8 * MIB)
    assert error is not None
    assert "no collection could run before the deadline" in error
    assert counters["failed"] == counters["collections.skipped.timeout"] == 1
    memory.set_pressure_policy(timeout_ms=10_000)
    block(8 * MIB)
    assert counters["rescued"] == 1 or OVERDUE_COLLECTION_GOES_ON


@pytest.mark.scenario(9)
def test_sixteen_native_threads(counters: Counters) -> None:
    fill_with_garbage()
    with Background(lambda: make_garbage(256 * KIB)):
        errors = testing.allocate_native(0, 2 * MIB, 16, 50)
    assert errors == []
    counters.check_all_rescued()
