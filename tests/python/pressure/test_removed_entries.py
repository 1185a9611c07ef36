"""`gc.callbacks` emptied in the middle of the gate's own collection: that collection counts all the same."""

from __future__ import annotations

import gc

import pytest

from conftest import FREE_THREADED
from pressure_tools import MIB, Counters, Node, another_thread, block, fits, memory

pytestmark = [pytest.mark.pressure, pytest.mark.scenario(19)]


class Emptying(Node):
    def __del__(self) -> None:
        gc.callbacks.clear()


def fill_with_old_garbage() -> None:
    nodes = []
    while fits(MIB):
        node = Node()
        node.tensor = block()
        nodes.append(node)
    gc.collect()
    gc.collect()


@pytest.mark.parametrize("alone", [True, False])
def test_emptied_by_a_finalizer(counters: Counters, alone: bool) -> None:
    """The first collection does not free anything; only if it counts does the request go on to the next."""
    memory.set_pressure_policy(timeout_ms=3_600_000)  # Whoever waited for it would hang.
    for _ in range(3):
        fill_with_old_garbage()
        Emptying()
        if alone:
            block(8 * MIB)
        else:
            with another_thread():
                block(8 * MIB)
    counters.check_all_rescued()
    assert counters["events"] == 3
    assert sum(counters[f"collections.skipped.{reason}"] for reason in ("reentrant", "timeout")) == 0
    assert counters["coalesced"] == 0
    assert counters["collections.full"] >= 3
    assert FREE_THREADED or counters["collections.young"] == 3


def test_replaced_at_the_start(counters: Counters) -> None:
    memory.set_pressure_policy(timeout_ms=3_600_000)

    def replace(_phase: str, _info: object) -> None:
        gc.callbacks[:] = [replace]

    fill_with_old_garbage()
    gc.callbacks.append(replace)
    try:
        block(8 * MIB)
    finally:
        gc.callbacks.remove(replace)
    counters.check_all_rescued()
    assert counters["collections.skipped.reentrant"] == counters["coalesced"] == 0
