"""Compiled functions and the device's memory: whose buffers they use, pressure inside them, exhaustion, two devices."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from compile.conftest import COMPILER_SECONDS
from conftest import RunScript
from pressure_tools import MIB, Counters, fill, fill_with_garbage, fits, memory

pytestmark = pytest.mark.pressure

SIDE = 1024
"""Of a square matrix of 4 MiB."""

Compiled = tuple[Callable[[Tensor], Tensor], Tensor]


def function(a: Tensor) -> Tensor:
    return ((a @ a).relu() @ a).softmax(-1)


@pytest.fixture
def compiled() -> Iterator[Compiled]:
    """The function, compiled, and an argument; the collector is off."""
    made = torch.compile(function, fullgraph=True)
    argument = torch.ones(SIDE, SIDE, device="spyre")
    made(argument)
    gc.collect()
    gc.disable()
    yield made, argument
    gc.enable()


def test_buffers_come_from_the_device(compiled: Compiled) -> None:
    made, argument = compiled
    before = memory.memory_stats()
    memory.reset_peak_memory_stats()
    result = made(argument)
    after = memory.memory_stats()
    assert after["allocated_bytes.all.current"] - before["allocated_bytes.all.current"] == 4 * MIB
    # Three buffers are allocated one after the other; two are there at a time, since the softmax works in place.
    assert after["allocated_bytes.all.peak"] - before["allocated_bytes.all.current"] >= 8 * MIB
    assert after["allocation.all.allocated"] - before["allocation.all.allocated"] >= 2
    del result
    assert memory.memory_stats()["allocated_bytes.all.current"] == before["allocated_bytes.all.current"]


def test_garbage_is_collected_for_a_compiled_call(compiled: Compiled) -> None:
    made, argument = compiled
    counters = Counters()
    fill_with_garbage()
    result = made(argument)
    counters.check_all_rescued()
    assert counters.collections() >= 1
    assert counters["reclaimed_bytes"] >= 4 * MIB
    torch.testing.assert_close(result.sum().item(), float(SIDE))


def leaf_gradient(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def test_garbage_is_collected_for_a_compiled_backward() -> None:
    argument = torch.ones(SIDE, SIDE, device="spyre", requires_grad=True)
    reference = torch.ones(SIDE, SIDE, requires_grad=True)
    made = torch.compile(lambda a: ((a @ a).sin() @ a).sum())
    made(argument).backward()
    gc.collect()
    gc.disable()
    try:
        loss = made(argument)
        argument.grad = None
        counters = Counters()
        fill_with_garbage()
        loss.backward()
        counters.check_all_rescued()
    finally:
        gc.enable()
    ((reference @ reference).sin() @ reference).sum().backward()
    torch.testing.assert_close(leaf_gradient(argument).cpu(), leaf_gradient(reference), rtol=1e-3, atol=1e-2)


def test_exhaustion_is_an_out_of_memory_error(compiled: Compiled) -> None:
    made, argument = compiled
    live: list[Tensor] = []
    fill(live)
    assert not fits(4 * MIB)
    counters = Counters()
    with pytest.raises(torch.OutOfMemoryError, match=r"spyre out of memory. Tried to allocate 4.00 MiB"):
        made(argument)
    assert counters["failed"] == counters["events"] == 1
    live.clear()
    torch.testing.assert_close(made(argument).sum().item(), float(SIDE))


TWO_DEVICES = {"TORCH_SPYRE_ALLOC_CONF": "device_memory:64MiB,devices:2"}


def test_compiled_functions_stay_on_their_device(run_script: RunScript) -> None:
    run_script(
        """
        import torch
        allocated = lambda index: torch.spyre.memory_stats(index)["allocation.all.allocated"]
        def function(a):
            branch = torch.cond(a.sum() > 0, lambda t: t.sin() * 2, lambda t: t.cos() * 2, (a,))
            return torch.softmax(a * 2, -1) @ a, torch.arange(3, device=a.device) + 1, branch
        x = torch.randn(8, 8)
        ours, before = x.to("spyre:1"), allocated(0)
        compiled = torch.compile(function, fullgraph=True)
        for result, expected in zip(compiled(ours), function(x)):
            assert result.device == torch.device("spyre:1")
            torch.testing.assert_close(result.cpu(), expected)
        random = torch.compile(lambda a: torch.rand(3, device=a.device) + torch.dropout(a[0, :3], 0.5, True))
        assert random(ours).device.index == 1
        assert allocated(0) == before and torch.spyre.current_device() == 0
        """,
        env=TWO_DEVICES,
        seconds=COMPILER_SECONDS,
    ).check()


def test_one_graph_on_two_devices(run_script: RunScript) -> None:
    run_script(
        """
        import torch
        x = torch.randn(8, 8)
        function = lambda a, b: (a * 2, b.sin(), a.to(b.device) + 1)
        results = torch.compile(function, fullgraph=True)(x.to("spyre:1"), x.to("spyre:0"))
        assert [result.device.index for result in results] == [1, 0, 0]
        for result, expected in zip(results, function(x, x)):
            torch.testing.assert_close(result.cpu(), expected)
        """,
        env=TWO_DEVICES,
        seconds=COMPILER_SECONDS,
    ).check()
