"""What proves that a collection of ours ran: our entries in `gc.callbacks`, on this thread, put back if missing."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from pressure_tools import MIB, Counters, Node, block, fill_with_garbage, fits, make_garbage, memory, testing

pytestmark = pytest.mark.pressure


@pytest.fixture(autouse=True)
def clean_device() -> Iterator[None]:
    gc.collect()
    gc.disable()
    policy = memory.get_pressure_policy()
    yield
    memory.set_pressure_policy(**policy)
    gc.enable()
    gc.collect()


@pytest.fixture
def counters() -> Counters:
    return Counters()


def test_entries_that_were_removed_are_put_back(counters: Counters) -> None:
    fill_with_garbage()
    gc.callbacks.clear()
    block(8 * MIB)
    counters.check_all_rescued()
    assert len(gc.callbacks) == 2
    assert counters.collections() >= 1


class Pausing(Node):
    """Stands still in its finalizer, in the middle of whatever collection finds it."""

    entered = threading.Event()
    leave = threading.Event()

    def __del__(self) -> None:
        self.entered.set()
        self.leave.wait()


def test_a_collection_that_another_thread_was_running_is_not_ours(counters: Counters) -> None:
    """`gc.collect()` returns 0 at once meanwhile. The other collection does not see this garbage: only ours will."""
    Pausing()
    other = threading.Thread(target=gc.collect)
    other.start()
    Pausing.entered.wait()
    while fits(MIB):
        make_garbage()
    asked = threading.Thread(target=block, args=(8 * MIB,))
    asked.start()
    while asked.is_alive() and not testing.census(0)["behind_foreign"]:
        pass
    waited = asked.is_alive()
    Pausing.leave.set()
    for thread in (other, asked):
        thread.join()
    assert waited, "it waits for the collection that is running"
    counters.check_all_rescued()
    assert counters["events"] == 1
    assert counters.collections() >= 1
