"""What dead cycles hold now, found without collecting; and that the out-of-memory error says it."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext

import pytest
import torch

import torch_spyre._cycles as cycles
from cycle_tools import fill_counted, size
from pressure_tools import MIB, Node, another_thread, block, make_garbage, memory

pytestmark = [pytest.mark.pressure, pytest.mark.usefixtures("recording")]


def test_dead_bytes_without_collecting() -> None:
    dead: list[object] = []

    class Quiet(Node):
        def __del__(self) -> None:
            dead.append(None)

    live = Node()
    live.tensor = block(2 * MIB)
    shared = block(4 * MIB)
    node = Quiet()
    node.tensor = block(8 * MIB)
    reference = weakref.ref(node)
    view = Node()
    view.tensor = shared[:MIB]
    del node, view
    collections = gc.get_stats()[2]["collections"]
    found = cycles.dead_bytes()
    assert found is not None
    assert found.nbytes == 8 * MIB
    (holding,) = found.holdings
    assert holding["name"].endswith("Quiet")
    assert holding["path"] == "Quiet.me → Quiet"
    assert gc.get_stats()[2]["collections"] == collections
    assert dead == []
    assert reference() is not None
    gc.collect()
    assert (len(dead), reference()) == (1, None)
    found = cycles.dead_bytes()
    assert found is not None
    assert (found.nbytes, found.holdings) == (0, [])


def test_dead_bytes_of_frozen_cycles() -> None:
    make_garbage()
    gc.freeze()
    try:
        found = cycles.dead_bytes()
        assert found is not None
        assert found.nbytes == 0, "the collector does not look at them"
    finally:
        gc.unfreeze()


def test_dead_bytes_has_a_time_limit() -> None:
    assert cycles.dead_bytes(timeout_s=0.0) is None
    with pytest.raises(ValueError, match="expected seconds, at least 0"):
        cycles.dead_bytes(timeout_s=-1.0)
    with pytest.raises(TypeError, match="timeout_s='1' is not a number; expected seconds"):
        cycles.dead_bytes(timeout_s="1")  # type: ignore[arg-type]
    assert cycles.dead_bytes(timeout_s=1e19) is not None
    assert cycles.dead_bytes(timeout_s=float("inf")) is not None


@pytest.mark.usefixtures("nothing_frozen")
@pytest.mark.parametrize("policy", ["off", "respect_disable"])
@pytest.mark.parametrize("native", [False, True])
def test_the_error_names_the_cycles_when_nothing_was_collected(policy: str, native: bool) -> None:
    memory.set_pressure_policy(gc=policy)
    filled = fill_counted()
    with another_thread() if native else nullcontext(), pytest.raises(torch.OutOfMemoryError) as caught:
        block()
    text = f"{size(filled)} is held only by dead reference cycles, by pressure_tools.Node."
    assert text in str(caught.value)
    memory.set_pressure_policy(gc="always")
    gc.collect()  # Without a GIL some of it may come free a little later than the first block is found.
    live = [block(32 * MIB), block(31 * MIB)]
    memory.set_pressure_policy(gc=policy)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        block(2 * MIB)
    assert "dead reference cycles" not in str(caught.value)
    assert len(live) == 2
