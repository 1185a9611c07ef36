"""Compiled functions and the device's memory: whose buffers they use, pressure inside them, exhaustion, two devices."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

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


def test_compiled_functions_stay_on_their_device(run_script: RunScript) -> None:
    run_script(
        """
        import torch
        allocated = lambda index: torch.spyre.memory_stats(index)["allocation.all.allocated"]
        x = torch.randn(8, 8)
        ours = x.to("spyre:1")
        function = lambda a: (torch.softmax(a * 2, -1) @ a, torch.arange(3, device=a.device) + 1)
        branch = lambda a: torch.cond(a.sum() > 0, lambda t: t.sin() * 2, lambda t: t.cos() * 2, (a,))
        before = allocated(0)
        compiled = torch.compile(function, fullgraph=True)
        for result, expected in zip(compiled(ours), function(x)):
            assert result.device == torch.device("spyre:1")
            torch.testing.assert_close(result.cpu(), expected)
        assert torch.compile(branch)(ours).device.index == 1
        random = lambda a: torch.rand(3, device=a.device) + torch.dropout(a[0, :3], 0.5, True)
        assert torch.compile(random)(ours).device.index == 1
        assert allocated(0) == before and torch.spyre.current_device() == 0
        assert compiled(x.to("spyre:0"))[0].device.index == 0 and allocated(0) > before
        one, other = torch.compile(lambda a, b: (a * 2, b * 3))(ours, x.to("spyre:0"))
        assert (one.device.index, other.device.index) == (1, 0)
        moved = torch.compile(lambda a: a.to("spyre:0") + 1)(ours)
        assert moved.device.index == 0
        torch.testing.assert_close(moved.cpu(), x + 1)
        """,
        env={"TORCH_SPYRE_ALLOC_CONF": "device_memory:64MiB,devices:2"},
    ).check()
