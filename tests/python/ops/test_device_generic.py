"""PyTorch's own device-generic tests, taken from the installed torch, with spyre for the device.

The wheel ships no test files (test_torch.py and the like), but it ships what they are made of: the machinery that makes
a class of tests for a device (`instantiate_device_type_tests` and `PrivateUse1TestBase`), the databases of operators,
modules and optimizers with inputs and erroneous inputs, and checkers. Each test here runs one of those; those named
thorough only with `--all-samples`.
"""

from __future__ import annotations

import itertools
import unittest
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ops import calls, catalogue, exceptions
from ops.comparison import Expectations

with catalogue.quietly():
    from torch._subclasses.schema_check_mode import SchemaCheckMode
    from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
    from torch.testing._internal.common_modules import module_db, modules
    from torch.testing._internal.common_optimizers import optim_db, optims
    from torch.testing._internal.common_utils import TestCase
    from torch.testing._internal.optests.fake_tensor import fake_check

pytestmark = pytest.mark.filterwarnings("ignore")

FEW = 2
"""Samples of one test without `--all-samples`."""

MANY = 5
"""Samples of one test with it: the checks take long."""


class TestGeneric(TestCase):
    """Checks of PyTorch on every operator, module and optimizer of its databases."""

    @pytest.fixture(autouse=True)
    def _receive(self, counts: Counter[str], all_samples: bool) -> None:
        self.counts = counts
        self.all_samples = all_samples

    def some(self, samples: Any) -> list[Any]:
        return catalogue.chosen(itertools.islice(samples, 500), False, MANY if self.all_samples else FEW)

    def expecting(self, test: str, name: str, check: Callable[[], object]) -> None:
        """Runs a check, which has to fail if the table of expected failures names it."""
        reason = exceptions.EXPECTED_GENERIC_FAILURES.get((test, name))
        if reason is None:
            check()
            self.counts[f"generic checks: {test}"] += 1
            return
        assert calls.fails(check), f"no longer fails; remove it from exceptions.py: {reason}"
        self.counts["generic checks that fail as expected"] += 1

    @ops(catalogue.op_db, allowed_dtypes=(torch.float32,))
    def test_schema(self, device: str, dtype: torch.dtype, op: Any) -> None:
        """What an operator mutates and aliases is what its schema says."""

        def check() -> None:
            for sample in self.some(op.sample_inputs(device, dtype)):
                with SchemaCheckMode():
                    op(sample.input, *sample.args, **sample.kwargs)

        self.expecting("schema", op.full_name, check)

    @ops(catalogue.op_db, allowed_dtypes=(torch.float32,))
    def test_thorough_fake(self, device: str, dtype: torch.dtype, op: Any) -> None:
        """Fake tensors predict type, shape, strides and device of the results."""

        def check() -> None:
            for sample in self.some(op.sample_inputs(device, dtype)):
                fake_check(op.get_op(), (sample.input, *sample.args), sample.kwargs)

        self.expecting("fake", op.full_name, check)

    @ops(
        [op for op in catalogue.op_db if op.error_inputs_func is not None],
        allowed_dtypes=(torch.float32, torch.int64, torch.bool),
    )
    def test_errors(self, device: str, dtype: torch.dtype, op: Any) -> None:
        """Erroneous inputs raise the error that PyTorch describes."""

        def check() -> None:
            for error in op.error_inputs(device):
                sample = error.sample_input
                with pytest.raises(error.error_type, match=error.error_regex):
                    op(sample.input, *sample.args, **sample.kwargs)

        self.expecting("errors", op.full_name, check)

    @modules(module_db, allowed_dtypes=(torch.float32,))
    def test_module(self, device: str, dtype: torch.dtype, module_info: Any, training: bool) -> None:
        """A module on the device does what it does on the CPU, with its gradients."""

        def check() -> None:
            inputs = module_info.module_inputs_func(
                module_info, device="cpu", dtype=dtype, requires_grad=True, training=training
            )
            for made in inputs:
                if made.forward_input is None:
                    continue
                constructor = made.constructor_input
                module = module_info.module_cls(*constructor.args, **constructor.kwargs).train(training)
                call = calls.trained(module, made.forward_input.args, made.forward_input.kwargs)
                assert calls.compare(call, Expectations(strides=False, relative=1e-4, absolute=1e-5))

        self.expecting("module", module_info.name, check)

    @optims(optim_db, dtypes=[torch.float32])
    def test_optimizer(self, device: str, dtype: torch.dtype, optim_info: Any) -> None:
        """An optimizer on the device takes the steps that it takes on the CPU, in all its implementations."""

        def check() -> None:
            for made in optim_info.optim_inputs_func(device="cpu", dtype=dtype):
                for extra in implementations(optim_info):
                    call = steps(optim_info.optim_cls, {**made.kwargs, **extra}, optim_info.only_supports_sparse_grads)
                    assert calls.compare(call, Expectations()), (made, extra)

        self.expecting("optimizer", optim_info.name, check)


def implementations(optim_info: Any) -> list[dict[str, bool]]:
    flags = [{name: True} for name in optim_info.supported_impls if name in ("foreach", "fused")]
    return [{"foreach": False}, *flags] if "foreach" in optim_info.supported_impls else [{}, *flags]


def steps(optimizer: Any, options: dict[str, Any], sparse: bool) -> Callable[[Any], object]:
    def call(copies: Any) -> object:
        parameters = [
            torch.nn.Parameter(torch.linspace(-1, 1, 12).reshape(shape).to(copies.device)) for shape in ((3, 4), (4, 3))
        ]
        here = optimizer(parameters, **copies.of(options))
        for step in range(3):
            for parameter in parameters:
                gradient = (parameter.detach() * (step + 1)).cos()
                parameter.grad = gradient.to_sparse() if sparse else gradient
            here.step(*([lambda: parameters[0].sum()] if optimizer is torch.optim.LBFGS else []))
        return parameters

    return call


instantiate_device_type_tests(TestGeneric, globals(), only_for="privateuse1")


def test_the_device_has_its_tests() -> None:
    made = [value for name, value in globals().items() if name.startswith("TestGeneric")]
    assert len(made) == 1
    assert issubclass(made[0], unittest.TestCase)
    assert made[0].get_primary_device.__func__.__qualname__.startswith("PrivateUse1TestBase")
    names = [name for name in dir(made[0]) if name.startswith("test_")]
    for kind in ("schema", "thorough_fake", "errors", "module", "optimizer"):
        assert any(name.startswith(f"test_{kind}_") for name in names), kind
