"""PyTorch's lists of module, criterion and autocast tests, which are written for CUDA, with spyre in its place.

Their methods compare a module on the CPU with the same one on the device: results, gradients, gradients of gradients,
and inputs that are not contiguous.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from ops import calls, catalogue, exceptions

with catalogue.quietly():
    from torch.testing._internal import common_nn
    from torch.testing._internal.autocast_test_lists import AutocastTestLists, TestAutocast
    from torch.testing._internal.common_utils import set_rng_seed

pytestmark = pytest.mark.filterwarnings("ignore")


def module_tests() -> list[Any]:
    made = []
    for described in common_nn.module_tests + common_nn.get_new_module_tests():
        options = dict(described)
        if "constructor" not in options:
            options["constructor"] = getattr(torch.nn, options.pop("module_name"))
        test = common_nn.NewModuleTest(**options)
        if test.should_test_cuda:
            made.append(test)
    return made


def to_spyre(value: Any, type_map: dict[torch.dtype, torch.dtype] | None = None) -> Any:
    """What common_utils.to_gpu is for CUDA."""
    if isinstance(value, torch.Tensor):
        dtype = (type_map or {}).get(value.dtype, value.dtype)
        copy = value.detach().to("spyre", dtype, copy=True)
        return copy.requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(to_spyre(each, type_map) for each in value)
    return value


@pytest.fixture
def instead_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_nn, "TEST_CUDA", True)
    monkeypatch.setattr(common_nn, "to_gpu", to_spyre)
    monkeypatch.setattr(torch.nn.Module, "cuda", lambda module: module.to("spyre"))


class Case(common_nn.NNTestCase):
    """What the lists expect of the test case that runs them."""

    def _forward(self, module: Any, inputs: Any) -> Any:
        return module(*inputs) if isinstance(inputs, tuple) else module(inputs)

    def _backward(self, module: Any, inputs: Any, output: Any, grad_output: Any, create_graph: bool = False) -> Any:
        output.backward(grad_output, retain_graph=True, create_graph=create_graph)
        found = tuple(None if each.grad is None else each.grad.data for each in self._tuple(inputs))
        return found if isinstance(inputs, tuple) else found[0]

    def _forward_criterion(self, criterion: Any, input: Any, target: Any, extra_args: Any = None) -> Any:
        return criterion(*self._tuple(input), target, *(extra_args or ()))

    def _backward_criterion(
        self, criterion: Any, input: Any, output: Any, target: Any, grad_output: Any = None, extra_args: Any = None
    ) -> Any:
        self._zero_grad_input(input)
        found = self._forward_criterion(criterion, input, target, extra_args)
        found.backward(torch.ones_like(found) if grad_output is None else grad_output)
        gradients = tuple(each.grad for each in self._tuple(input))
        return gradients if isinstance(input, tuple) else gradients[0]

    def _get_parameters(self, module: Any) -> Any:
        parameters = list(module.parameters())
        return parameters, [each.grad for each in parameters]

    def _zero_grad_parameters(self, module: Any) -> None:
        for each in module.parameters():
            each.grad = None

    def _zero_grad_input(self, inputs: Any) -> None:
        for each in self._tuple(inputs):
            if isinstance(each, torch.Tensor) and each.requires_grad:
                each.grad = None

    @staticmethod
    def _tuple(inputs: Any) -> Any:
        return inputs if isinstance(inputs, tuple) else (inputs,)


def identified(tests: list[Any]) -> list[Any]:
    """Each test with its name; where torch gives two the same, with a number too."""
    seen: Counter[str] = Counter()
    parameters = []
    for test in tests:
        name = test.get_name()
        seen[name] += 1
        parameters.append(pytest.param(test, id=name if seen[name] == 1 else f"{name}-{seen[name]}"))
    return parameters


@pytest.fixture
def reason(request: pytest.FixtureRequest) -> str | None:
    return exceptions.EXPECTED_LIST_FAILURES.get(request.node.name)


def check(run: Any, reason: str | None, counts: Counter[str], kind: str) -> None:
    set_rng_seed()  # As PyTorch's test cases begin: the lists draw their inputs.
    if reason is None:
        run()
        counts[kind] += 1
    else:
        assert calls.fails(run), f"no longer fails; remove it from exceptions.py: {reason}"
        counts[f"{kind} that fail as expected"] += 1


@pytest.mark.usefixtures("instead_of_cuda")
@pytest.mark.parametrize("test", identified(module_tests()))
def test_module(test: Any, reason: str | None, counts: Counter[str]) -> None:
    check(lambda: test.test_cuda(Case()), reason, counts, "module tests of common_nn")


def criterion_cases() -> list[Any]:
    """Each criterion with each type that PyTorch's own use of the list runs it with."""
    cases = []
    for described in common_nn.criterion_tests:
        test = common_nn.CriterionTest(**described)
        if test.should_test_cuda:
            dtypes = [torch.float32, torch.float64]
            dtypes += [torch.float16] * test.check_half + [torch.bfloat16] * test.check_bfloat16
            name = test.get_name()
            cases += [pytest.param(test, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}") for dtype in dtypes]
    return cases


@pytest.mark.usefixtures("instead_of_cuda")
@pytest.mark.parametrize(("test", "dtype"), criterion_cases())
def test_criterion(test: Any, dtype: torch.dtype, reason: str | None, counts: Counter[str]) -> None:
    check(lambda: test.test_cuda(Case(), dtype, test.extra_args), reason, counts, "criterion tests of common_nn")


AUTOCAST = {
    "torch_fp16": (torch.float16, torch),
    "torch_fp32": (torch.float32, torch),
    "nn_fp16": (torch.float16, torch._C._nn),
    "nn_fp32": (torch.float32, torch._C._nn),
    "linalg_fp16": (torch.float16, getattr(torch._C, "_linalg")),  # noqa: B009 - unknown to torch's stubs.
    "methods_fp16": (torch.float16, None),
    "methods_fp32": (torch.float32, None),
}
"""The lists of operators, with the type in which autocast runs them and where they are."""


def autocast_cases() -> list[Any]:
    lists = AutocastTestLists("cpu")
    return [
        pytest.param(name, position, id=f"{name}-{position}-{entry[0]}")
        for name in AUTOCAST
        for position, entry in enumerate(getattr(lists, name))
        if not left_out(entry)
    ]


def left_out(entry: Any) -> bool:
    """PyTorch's own use of the lists leaves out what has something true, not keyword arguments, in the third place."""
    return len(entry) > 2 and not isinstance(entry[2], dict) and bool(entry[2])


@pytest.mark.parametrize(("name", "position"), autocast_cases())
def test_autocast(name: str, position: int, reason: str | None, counts: Counter[str]) -> None:
    dtype, module = AUTOCAST[name]
    operator, arguments, *rest = getattr(AutocastTestLists("spyre"), name)[position]
    keywords = rest[0] if rest and isinstance(rest[0], dict) else {}
    case = TestAutocast()
    check(
        lambda: case._run_autocast_outofplace(
            operator, arguments, dtype, "spyre", module=module, add_kwargs=keywords, amp_dtype=torch.float16
        ),
        reason,
        counts,
        "autocast tests",
    )
