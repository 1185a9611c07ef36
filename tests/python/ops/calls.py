"""Calling an operator on a sample: forward, in place, with `out=`, backward; on CPU and on spyre."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from ops.comparison import Expectations
from ops.device_copies import Copies

Operator = Callable[..., Any]
"""A function of a sample's input, arguments and keyword arguments."""

SEED = 7


class Outcome:
    """What a call gave on one device: a value, or an error."""

    def __init__(self, call: Callable[[Copies], object], copies: Copies, default_device: bool) -> None:
        self.error: Exception | None = None
        self.value: object = None
        torch.manual_seed(SEED)
        try:
            with warnings.catch_warnings(), torch.device(copies.device) if default_device else nullcontext():
                warnings.simplefilter("ignore")
                self.value = call(copies)
        except Exception as error:
            self.error = error


def compare(
    call: Callable[[Copies], object],
    expectations: Expectations,
    *,
    cpu_arguments: bool = False,
    default_device: bool = False,
) -> bool:
    """Makes the call on both devices and asserts that the outcomes are the same. False if it fails on both.

    With `cpu_arguments`, only the first argument is moved; with `default_device`, factory functions create tensors on
    the device.
    """
    expected = Outcome(call, Copies("cpu", cpu_arguments), default_device)
    actual = Outcome(call, Copies("spyre", cpu_arguments), default_device)
    if expected.error is not None:
        assert type(actual.error) is type(expected.error), f"CPU: {expected.error!r}; spyre: {actual.error!r}"
        return False
    if actual.error is not None:
        raise actual.error
    expectations.assert_same(actual.value, expected.value)
    return True


def arguments(sample: Any, copies: Copies) -> tuple[Any, Any, Any]:
    first = copies.of(sample.input)
    if copies.only_first:
        return first, sample.args, sample.kwargs
    return first, copies.of(sample.args), copies.of(sample.kwargs)


def forward(function: Operator, sample: Any) -> Callable[[Copies], object]:
    """A call that returns the results and the arguments, which an operator may change."""

    def call(copies: Copies) -> object:
        first, args, kwargs = arguments(sample, copies)
        result = function(first, *args, **kwargs)
        return (result, first) if copies.only_first else (result, first, args, kwargs)

    return call


def backward(function: Operator, sample: Any) -> Callable[[Copies], object]:
    """A call that returns the gradients of all arguments that have one, for fixed gradients of the results."""

    def call(copies: Copies) -> object:
        first, args, kwargs = arguments(sample, copies)
        results = sample.output_process_fn_grad(function(first, *args, **kwargs))
        outputs = [each for each in tensors_in(results) if each.requires_grad]
        if not outputs or not copies.leaves:
            return ()
        generator = torch.Generator().manual_seed(SEED)
        seeds = [torch.randn(each.shape, dtype=each.dtype, generator=generator).to(each.device) for each in outputs]
        return torch.autograd.grad(outputs, copies.leaves, seeds, allow_unused=True)

    return call


def with_out(function: Operator, sample: Any, *, fitting: bool) -> Callable[[Copies], object]:
    """A call with `out=`: tensors that fit the results, or empty ones, which the operator has to resize."""

    def call(copies: Copies) -> object:
        first, args, kwargs = arguments(sample, copies)
        results = function(first, *args, **kwargs)
        first, args, kwargs = arguments(sample, Copies(copies.device.type, copies.only_first))
        is_tensor = isinstance(results, torch.Tensor)
        outs = [empty_for(each, fitting) for each in ([results] if is_tensor else results)]
        addresses = [each.data_ptr() for each in outs]
        torch.manual_seed(SEED)
        returned = function(first, *args, **kwargs, out=outs[0] if is_tensor else tuple(outs))
        if fitting:
            assert [each.data_ptr() for each in outs] == addresses, "an output that fits was given other memory"
        return returned, outs

    return call


def empty_for(result: torch.Tensor, fitting: bool) -> torch.Tensor:
    if not fitting:
        return torch.empty(0, dtype=result.dtype, device=result.device)
    return torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device=result.device).zero_()


def trained(layer: torch.nn.Module, inputs: object, keywords: object = None) -> Callable[[Copies], object]:
    """A call that returns a layer's results, the gradients of inputs and parameters, and its buffers afterwards."""

    def call(copies: Copies) -> object:
        here = copy.deepcopy(layer).to(copies.device)
        results = here(*copies.of(inputs), **copies.of(keywords or {}))
        outputs = [each for each in tensors_in(results) if each.requires_grad]
        if outputs:
            seeds = [torch.linspace(-1, 1, each.numel()).reshape(each.shape).to(each) for each in outputs]
            torch.autograd.backward(outputs, seeds)
        gradients = [each.grad for each in (*copies.leaves, *here.parameters())]
        return results, gradients, list(here.buffers())

    return call


def fails(check: Callable[[], object]) -> bool:
    """Whether a check fails in any way, which is all that a table of expected failures says."""
    try:
        check()
    except (Exception, pytest.fail.Exception):
        return True
    return False


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)
