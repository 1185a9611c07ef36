"""What proves that a collection of ours ran: our entries in `gc.callbacks`, on this thread, put back if missing."""

from __future__ import annotations

import gc

import pytest

from pressure_tools import MIB, Counters, PausedCollection, block, fill_with_garbage, running, testing

pytestmark = pytest.mark.pressure


def test_entries_that_were_removed_are_put_back(counters: Counters) -> None:
    fill_with_garbage()
    gc.callbacks.clear()
    block(8 * MIB)
    counters.check_all_rescued()
    assert len(gc.callbacks) == 2
    assert counters.collections() >= 1


def test_a_collection_that_another_thread_was_running_is_not_ours(counters: Counters) -> None:
    """`gc.collect()` returns 0 at once meanwhile. The other collection does not see this garbage: only ours will."""

    def resume_when_the_request_waits() -> None:
        try:
            testing.wait_for_gate(behind_foreign=True)
        finally:
            paused.resume()

    with PausedCollection("finalizer") as paused:
        fill_with_garbage()
        with running(resume_when_the_request_waits):
            block(8 * MIB)
    counters.check_all_rescued()
    assert counters["events"] == 1
    assert counters.collections() >= 1
