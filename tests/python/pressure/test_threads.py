"""Several Python threads: the reference's scenarios, threads that share collections, threads that come and go."""

from __future__ import annotations

import threading

import pytest
import torch

from pressure_tools import (
    KIB,
    MIB,
    Background,
    Counters,
    PausedCollection,
    block,
    fill_with_garbage,
    make_garbage,
    repeat,
    run_threads,
    running,
    testing,
)

pytestmark = pytest.mark.pressure


@pytest.mark.scenario(4)
def test_python_thread_against_pressure(counters: Counters) -> None:
    """T1 holds the GIL and takes the mutex again and again; T2 is under pressure."""
    with Background(lambda: testing.allocate_attached(0, 128)) as small:
        repeat(500, make_garbage)
    assert small.steps > 0
    counters.check_all_rescued()


@pytest.mark.scenario(4)
def test_two_python_threads_under_pressure(counters: Counters) -> None:
    run_threads(2, lambda: repeat(300, make_garbage))
    counters.check_all_rescued()


@pytest.mark.scenario(4)
def test_native_thread_against_python_thread(counters: Counters) -> None:
    """T1 is native and under pressure; T2 holds the GIL and wants the mutex."""
    fill_with_garbage()
    with Background(lambda: testing.allocate_attached(0, 128)) as attached:
        assert testing.allocate_native(0, 4 * MIB, 1, 200) == []
    assert attached.steps > 0
    counters.check_all_rescued()


@pytest.mark.scenario(4)
def test_thread_in_the_interpreter_waits_for_the_mutex(counters: Counters) -> None:
    """T1 holds the GIL and blocks on the mutex; whoever has that goes on without the GIL."""
    done: list[object] = []

    def allocate() -> None:
        done.append(testing.allocate_attached(0, 128))

    with running(lambda: repeat(200, make_garbage)):
        repeat(1000, allocate)
    assert done == [None] * 1000
    counters.check_all_rescued()


@pytest.mark.scenario(5)
def test_eight_threads(counters: Counters) -> None:
    """Each owns its garbage, and needs a tenth of the device at a time."""
    run_threads(8, lambda: repeat(20, lambda: make_garbage(6 * MIB)))
    counters.check_all_rescued()


@pytest.mark.scenario(5)
def test_eight_threads_share_one_collection(counters: Counters) -> None:
    """All have failed before it can begin, since the program's own is paused until all wait."""

    def resume_when_all_wait() -> None:
        try:
            testing.wait_for_gate(9, behind_foreign=True)  # The collector thread too.
        finally:
            paused.resume()

    with PausedCollection("before") as paused:
        fill_with_garbage()
        with running(resume_when_all_wait):
            run_threads(8, lambda: make_garbage(6 * MIB))
    counters.check_all_rescued()
    assert (counters["events"], counters["coalesced"], counters.collections()) == (8, 7, 1)


@pytest.mark.scenario(18)
def test_a_thousand_short_lived_threads(counters: Counters) -> None:
    repeat(125, lambda: run_threads(8, make_garbage))
    counters.check_all_rescued()


@pytest.mark.scenario(18)
def test_threads_that_end_under_pressure_with_garbage_of_their_own(counters: Counters) -> None:
    """What a thread leaves in its locals and its thread-local storage dies with it, while others are under pressure."""
    local = threading.local()

    def work() -> None:
        local.kept = block(64 * KIB)
        make_garbage()

    repeat(30, lambda: run_threads(8, work))
    counters.check_all_rescued()


def test_frees_while_the_mutex_is_held_are_pending_and_counted() -> None:
    tensors = [block(64 * KIB) for _ in range(300)]
    before = torch.spyre.memory_stats()
    testing.while_mutex_is_held(0, tensors.clear)  # A free that waited for the mutex would hang.
    after = torch.spyre.memory_stats()
    assert after["allocation.all.freed"] - before["allocation.all.freed"] == 300
    assert before["allocated_bytes.all.current"] - after["allocated_bytes.all.current"] == 300 * 64 * KIB
