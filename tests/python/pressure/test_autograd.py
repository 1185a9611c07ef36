"""An autograd worker, a native thread with a Python thread state, under pressure in the middle of a backward pass."""

from __future__ import annotations

import threading

import pytest
import torch

from pressure_tools import MIB, Counters, fill_with_garbage, make_garbage, repeat

pytestmark = [pytest.mark.pressure, pytest.mark.scenario(7)]


def test_pressure_in_backward(counters: Counters) -> None:
    weights = torch.ones(2 * MIB // 4, device="spyre", requires_grad=True)
    threads: set[int] = set()

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone()

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            threads.add(threading.get_ident())
            fill_with_garbage()
            return gradient * 2

    output = Watched.apply(weights * 3)
    output.sum().backward()
    assert weights.grad is not None
    assert weights.grad[0].item() == 6.0
    counters.check_all_rescued()
    assert threading.get_ident() not in threads, "a device's gradients are computed on a worker of autograd"


def test_pressure_in_a_gradient_hook(counters: Counters) -> None:
    """The worker calls Python code in the middle of backward; that code is under pressure, and so are the operators."""
    weights = torch.ones(MIB // 4, device="spyre", requires_grad=True)
    calls: list[int] = []

    def hook(_: torch.Tensor) -> None:
        calls.append(threading.get_ident())
        repeat(100, make_garbage)

    value = weights
    for _ in range(5):
        value = value * 2
        value.register_hook(hook)
    value.sum().backward()
    assert weights.grad is not None
    assert weights.grad[0].item() == 32.0
    assert len(calls) == 5
    counters.check_all_rescued()
