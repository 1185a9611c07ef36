"""One thread: garbage far beyond the device's capacity, live memory, garbage in waves, and the error's hints."""

from __future__ import annotations

import gc
import re
import sys

import pytest
import torch
from torch import nn

from conftest import FREE_THREADED
from pressure_tools import (
    KIB,
    MIB,
    Counters,
    Node,
    block,
    expected_young,
    fill,
    fill_with_garbage,
    free_bytes,
    make_garbage,
    memory,
    repeat,
    testing,
)

pytestmark = pytest.mark.pressure


@pytest.mark.scenario(1)
def test_dead_cycles_far_beyond_capacity(counters: Counters) -> None:
    assert not gc.isenabled()
    repeat(1000, make_garbage)
    counters.check_all_rescued()
    assert counters["reclaimed_bytes"] >= 900 * MIB
    assert counters.collections() < 100


@pytest.mark.scenario(2)
def test_dead_cycles_with_the_collector_on(counters: Counters) -> None:
    gc.enable()
    repeat(1000, make_garbage)
    counters.check_all_rescued()


@pytest.mark.scenario(2)
def test_garbage_in_the_oldest_generation(counters: Counters) -> None:
    gc.enable()
    nodes = []
    for _ in range(60):
        node = Node()
        node.tensor = block()
        nodes.append(node)
    for _ in range(3):
        gc.collect()  # They survive into the oldest generation, where a young collection does not look.
    del node
    nodes.clear()
    kept = block(16 * MIB)
    assert kept.numel() == 16 * MIB
    counters.check_all_rescued()
    assert counters["collections.full"] >= 1


@pytest.mark.scenario(3)
def test_live_tensors_fill_the_device(counters: Counters) -> None:
    live = []
    with pytest.raises(torch.OutOfMemoryError) as caught:
        repeat(70, lambda: live.append(block()))
    text = str(caught.value)
    free = free_bytes()
    assert "Tried to allocate 1.00 MiB. Device 0 has a total capacity of 64.00 MiB" in text
    assert len(live) * MIB + free <= 64 * MIB
    assert free < MIB
    assert f"Python GC ran: {expected_young()} young, 1 full; 0 bytes reclaimed in " in text
    assert (counters["events"], counters["failed"], counters["rescued"]) == (1, 1, 0)
    assert (counters["collections.young"], counters["collections.full"]) == (expected_young(), 1)
    del caught
    live.clear()
    assert torch.ones(1000, device="spyre").sum().item() == 1000.0


def test_impossible_request_runs_no_collection(counters: Counters) -> None:
    ooms = torch.spyre.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError, match=r"above 64\.00 MiB, the largest region.*no collection could help"):
        block(65 * MIB)
    assert torch.spyre.memory_stats()["num_ooms"] == ooms + 1
    assert counters["events"] == counters.collections() == 0


def test_memory_fraction_is_named(counters: Counters) -> None:
    torch.spyre.set_per_process_memory_fraction(0.25)
    try:
        with pytest.raises(torch.OutOfMemoryError, match=r"above 16\.00 MiB, the memory fraction set for the device"):
            block(20 * MIB)
        live: list[torch.Tensor] = []
        fill(live)
        with pytest.raises(torch.OutOfMemoryError, match=r"memory fraction set for the device allows 16\.00 MiB"):
            block()
        live.clear()
        for _ in range(40):
            make_garbage()
    finally:
        torch.spyre.set_per_process_memory_fraction(1.0)
    block(20 * MIB)
    assert (counters["failed"], counters["events"] - counters["rescued"]) == (1, 1)


def test_growth_without_exhaustion_runs_no_collection(counters: Counters) -> None:
    seen: list[str] = []
    gc.callbacks.append(lambda phase, _info: seen.append(phase))
    try:
        live: list[torch.Tensor] = []
        fill(live)
    finally:
        gc.callbacks.pop()
    assert len(live) >= 60
    assert seen == []
    assert counters["events"] == counters.collections() == 0


@pytest.mark.scenario(15)
def test_training_step_with_threshold_one(counters: Counters) -> None:
    threshold = gc.get_threshold()
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    model = model.to("spyre")
    optimizer = torch.optim.AdamW(model.parameters())  # Imports much, the first time.
    fill_with_garbage(256 * KIB)
    gc.set_threshold(1)
    gc.enable()
    try:
        loss = model(torch.randn(16, 3, 8, 8, device="spyre")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert loss.isfinite().item()
    finally:
        gc.set_threshold(*threshold)
        gc.disable()
    repeat(100, make_garbage)
    counters.check_all_rescued()


def test_patched_collect_is_not_called(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    def patched(*_: object) -> int:
        raise AssertionError("the collector captured at import is the one to call")

    fill_with_garbage()
    monkeypatch.setattr(gc, "collect", patched)
    block(8 * MIB)
    monkeypatch.undo()
    counters.check_all_rescued()


def test_pending_exception_survives(counters: Counters) -> None:
    fill_with_garbage()

    def allocate_while_raising() -> None:
        try:
            raise KeyError("mine")
        finally:
            block(8 * MIB)

    with pytest.raises(KeyError, match="mine"):
        allocate_while_raising()
    counters.check_all_rescued()


def test_exception_pending_in_c_survives(counters: Counters) -> None:
    fill_with_garbage()
    assert testing.allocate_with_pending_exception(0, 8 * MIB) == (None, "pending")
    counters.check_all_rescued()


@pytest.mark.scenario(20)
def test_garbage_in_four_waves(counters: Counters) -> None:
    memory.set_pressure_policy(escalate=False)
    registry: dict[int, Node] = {}

    class Layer(Node):
        """Alive in the registry until the layer before it is finalized: one layer for each collection."""

        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def __del__(self) -> None:
            registry.pop(self.number + 1, None)

    for number in range(1, 5):
        registry[number] = Layer(number)
    registry[4].tensor = block(60 * MIB)
    del registry[1]
    block(16 * MIB)
    counters.check_all_rescued()
    assert counters["collections.full"] == 4


@pytest.mark.scenario(20)
def test_chain_through_autograd_nodes(counters: Counters) -> None:
    """A cycle -> a tensor -> its autograd node -> a saved tensor -> the next cycle loses one layer each collection."""
    memory.set_pressure_policy(escalate=False)
    held = Node()
    held.tensor = block(56 * MIB)
    for _ in range(3):
        saved = torch.ones(1, device="spyre")
        saved.held = held  # type: ignore[attr-defined]
        node = Node()
        node.tensor = torch.ones(1, device="spyre", requires_grad=True) * saved
        held = node
    del node, held, saved
    block(16 * MIB)
    counters.check_all_rescued()
    assert counters["collections.full"] == 4


@pytest.mark.scenario(20)
def test_cache_emptied_by_a_finalizer(counters: Counters) -> None:
    cache = [block() for _ in range(60)]

    class Owner(Node):
        def __del__(self) -> None:
            cache.clear()

    Owner()
    block(32 * MIB)
    counters.check_all_rescued()
    assert cache == []


@pytest.mark.scenario(17)
@pytest.mark.usefixtures("nothing_frozen")
def test_frozen_cycle(counters: Counters) -> None:
    fill_with_garbage()
    gc.freeze()
    try:
        with pytest.raises(torch.OutOfMemoryError, match=r"gc\.freeze\(\).*see gc\.unfreeze\(\)") as caught:
            block(8 * MIB)
    finally:
        gc.unfreeze()
    assert "A live traceback" not in str(caught.value)
    assert (counters["failed"], counters["reclaimed_bytes"]) == (1, 0)
    block(8 * MIB)
    assert counters["rescued"] == 1
    assert counters["reclaimed_bytes"] >= 8 * MIB


def fail_with_tensors() -> None:
    live = [block() for _ in range(62)]
    raise ValueError(len(live))


@pytest.mark.scenario(17)
@pytest.mark.usefixtures("nothing_frozen")
def test_held_traceback(counters: Counters) -> None:
    try:
        fail_with_tensors()
    except ValueError:
        with pytest.raises(torch.OutOfMemoryError, match="A live traceback holds 62.00 MiB") as caught:
            block(8 * MIB)
        assert "Objects frozen" not in str(caught.value)
        del caught  # Its context is the exception that holds the tensors.
    assert (counters["failed"], counters["reclaimed_bytes"]) == (1, 0)
    block(8 * MIB)
    assert counters["events"] == 1 + counters["rescued"]


@pytest.mark.scenario(17)
@pytest.mark.usefixtures("nothing_frozen")
@pytest.mark.parametrize("name", ["last_exc", "last_value"])
def test_exception_kept_by_an_interactive_session(counters: Counters, name: str) -> None:
    try:
        fail_with_tensors()
    except ValueError as error:
        setattr(sys, name, error)
    try:
        with pytest.raises(torch.OutOfMemoryError, match="A live traceback holds 62.00 MiB"):
            block(8 * MIB)
    finally:
        delattr(sys, name)
    block(8 * MIB)
    assert (counters["failed"], counters["events"]) == (1, 1 + counters["rescued"])


@pytest.mark.scenario(17)
@pytest.mark.usefixtures("nothing_frozen")
def test_nothing_is_hinted_that_does_not_apply(counters: Counters) -> None:
    live = [block() for _ in range(62)]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        block(8 * MIB)
    text = str(caught.value)
    assert re.search(r" ms\. To see where the memory went, record history: \S+\(\)\.$", text), text
    assert counters["failed"] == 1
    assert len(live) == 62
    assert FREE_THREADED or counters["collections.young"] == 1
