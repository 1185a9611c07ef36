"""The OpInfo database on spyre: each operator and data type, compared with CPU.

Forward, in place, with `out=` that fits and that has to be resized, and backward. Random numbers count as values: a
spyre generator gives those of a CPU generator with the same seed, and each call seeds anew.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ops import calls, catalogue, exceptions
from ops.comparison import Expectations
from ops.device_copies import Copies

# Operators warn of much that does not concern the device: prototypes, deprecations, experimental types.
pytestmark = pytest.mark.filterwarnings("ignore")

SAMPLES = 3
"""How many samples of an operator and type run without `--all-samples`."""

VARIANT_SAMPLES = 3
"""How many of them run in place and with `out=` too."""


class Sweep:
    """All calls of one operator with one data type; problems are collected, each with the call that had it."""

    def __init__(self, operator: Any, dtype: torch.dtype, counts: Counter[str]) -> None:
        self.operator = operator
        self.dtype = dtype
        self.counts = counts
        self.problems: list[str] = []
        name = operator.full_name
        self.cpu_arguments = name in exceptions.CPU_ARGUMENTS
        self.default_device = name in exceptions.FACTORIES
        self.expectations = Expectations(
            values=name not in exceptions.UNINITIALISED, strides=name not in exceptions.OWN_LAYOUT
        )

    def attempt(self, kind: str, position: int, call: Callable[[Copies], object]) -> None:
        try:
            done = calls.compare(
                call, self.expectations, cpu_arguments=self.cpu_arguments, default_device=self.default_device
            )
        except Exception as problem:
            self.problems.append(f"{kind}, sample {position}: {type(problem).__name__}: {problem}")
        else:
            self.counts[f"{kind}{'' if done else ' that fail on both'}"] += 1

    def forward(self, samples: list[Any]) -> None:
        in_place = self.operator.get_inplace()
        for position, sample in enumerate(samples):
            self.attempt("forward calls", position, calls.forward(self.operator, sample))
            if position >= VARIANT_SAMPLES:
                continue
            if in_place and not sample.broadcasts_input:
                self.attempt("in-place calls", position, calls.forward(in_place, sample))
            if self.operator.supports_out:
                for fitting in (True, False):
                    call = calls.with_out(self.operator, sample, fitting=fitting)
                    self.attempt("calls with out=", position, call)

    def backward(self, samples: list[Any]) -> None:
        for position, sample in enumerate(samples):
            self.attempt("backward calls", position, calls.backward(self.operator, sample))


@pytest.fixture
def accumulates_as_on_cpu(operator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes PyTorch choose for every device what it chooses for the CPU, for the operators that the table names."""
    if operator.full_name in exceptions.ACCUMULATES_BY_NAME:
        options = importlib.import_module("torch.nn.modules.linear_cross_entropy_options")
        resolve = options.LinearCrossEntropyOptions._resolve_auto_acc_dtype
        as_on_cpu = staticmethod(lambda dtype, _: resolve(dtype, torch.device("cpu")))
        monkeypatch.setattr(options.LinearCrossEntropyOptions, "_resolve_auto_acc_dtype", as_on_cpu)
        if torch.__version__ < "2.14":  # It has a table.
            for (device, dtype), choice in list(options._AUTO_DEFAULTS.items()):
                if device == "cpu":
                    monkeypatch.setitem(options._AUTO_DEFAULTS, ("spyre", dtype), choice)
        else:
            policy = options._auto_acc_policy
            monkeypatch.setattr(options, "_auto_acc_policy", lambda _, dtype: policy("cpu", dtype))


def has_gradient(operator: Any, dtype: torch.dtype) -> bool:
    return bool(operator.supports_autograd) and dtype in operator.supported_backward_dtypes("cpu")


@pytest.mark.usefixtures("accumulates_as_on_cpu")
@pytest.mark.parametrize(("operator", "dtype"), catalogue.cases(catalogue.op_db))
def test_operator(operator: Any, dtype: torch.dtype, counts: Counter[str], all_samples: bool) -> None:
    sweep = Sweep(operator, dtype, counts)
    name = operator.full_name
    reason = exceptions.EXPECTED_FAILURES.get((name, dtype)) or exceptions.EXPECTED_FAILURES.get((name, None))
    everything = all_samples or reason is not None
    count = exceptions.SLOW.get(name, SAMPLES)
    sweep.forward(catalogue.chosen(operator.sample_inputs("cpu", dtype), everything, count))
    if has_gradient(operator, dtype):
        with_gradient = operator.sample_inputs("cpu", dtype, requires_grad=True)
        sweep.backward(catalogue.chosen(with_gradient, everything, count))
    counts["operators with a data type"] += 1
    if reason is None:
        assert not sweep.problems, "\n".join(sweep.problems)
    else:
        assert sweep.problems, f"{name} with {dtype} no longer fails; remove it from exceptions.py: {reason}"


@pytest.mark.parametrize(("operator", "dtype"), catalogue.cases(catalogue.op_db, catalogue.EIGHT_BIT_TYPES))
def test_operator_with_eight_bits(operator: Any, dtype: torch.dtype, counts: Counter[str]) -> None:
    """Few operators say that the CPU has them for float8, so all samples run."""
    sweep = Sweep(operator, dtype, counts)
    sweep.forward(list(operator.sample_inputs("cpu", dtype)))
    assert not sweep.problems, "\n".join(sweep.problems)
    counts["operators with a float8 type"] += 1


def test_tables_name_existing_operators() -> None:
    known = {operator.full_name for operator in catalogue.op_db}
    named = {name for name, _ in exceptions.EXPECTED_FAILURES}
    for table in (
        exceptions.ACCUMULATES_BY_NAME,
        exceptions.UNINITIALISED,
        exceptions.OWN_LAYOUT,
        exceptions.FACTORIES,
        exceptions.CPU_ARGUMENTS,
        exceptions.SLOW,
    ):
        named |= set(table)
    assert named <= known


OTHERS = [*catalogue.custom_op_db, *catalogue.autograd_function_db]
"""PyTorch's custom operators and autograd functions, with torch.func's rules for them."""


@pytest.mark.parametrize(("operator", "dtype"), catalogue.cases(OTHERS, (torch.float32,)))
def test_custom_operator(operator: Any, dtype: torch.dtype, counts: Counter[str]) -> None:
    reason = exceptions.EXPECTED_CUSTOM_FAILURES.get(operator.full_name)
    problems = []
    for requires_grad in (False, True):
        for sample in operator.sample_inputs("cpu", dtype, requires_grad=requires_grad):
            call = (calls.backward if requires_grad else calls.forward)(operator, sample)
            try:
                done = calls.compare(call, Expectations())
            except Exception as problem:
                problems.append(problem)
            else:
                counts[f"calls of custom operators{'' if done else ' that fail on both'}"] += 1
    assert bool(problems) == (reason is not None), problems or f"no longer fails: {reason}"
