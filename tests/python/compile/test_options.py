"""Modes, backends and options of torch.compile: what applies works, what does not says so."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from compile.conftest import COMPILER_SECONDS, same
from conftest import RunScript
from torch_spyre.inductor import _graph_pass

SQUARE = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))


def function(a: Tensor) -> Tensor:
    return (a @ a).sin().sum(1)


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    _graph_pass._warn_once.cache_clear()
    torch._inductor.utils.clear_inductor_caches()


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("default", []),
        ("reduce-overhead", ["CUDA graphs"]),
        ("max-autotune", ["CUDA graphs", "max-autotune has nothing to choose from"]),
        ("max-autotune-no-cudagraphs", ["max-autotune has nothing to choose from"]),
    ],
)
def test_modes(mode: str, said: list[str]) -> None:
    with torch._inductor.config.patch(force_disable_caches=True), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        same(torch.compile(function, mode=mode)(SQUARE.to("spyre")), function(SQUARE), 1e-4)
    messages = [str(warning.message) for warning in caught if "on spyre" in str(warning.message)]
    assert len(messages) == len(said)
    assert all(any(part in message for message in messages) for part in said)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_decomp_partition"])
def test_backends_without_code_generation(backend: str) -> None:
    ours, theirs = SQUARE.to("spyre").requires_grad_(), SQUARE.clone().requires_grad_()
    actual, expected = torch.compile(function, backend=backend, fullgraph=True)(ours), function(theirs)
    same(actual, expected, 1e-4)
    actual.sum().backward()
    expected.sum().backward()
    same(ours.grad, theirs.grad, 1e-4)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("cpp_wrapper", "C\\+\\+ wrapper and AOTInductor are not available on spyre.*Leave .*cpp_wrapper False"),
        ("fx_wrapper", "FX wrapper is not available on spyre"),
        ("combo_kernels", "combo kernels are not available on spyre"),
    ],
)
def test_options_that_are_refused(option: str, message: str) -> None:
    refused: Any = torch._inductor.config.patch({option: True})
    with refused, pytest.raises(Exception, match=message) as caught:
        torch.compile(function)(SQUARE.to("spyre"))
    assert "NotImplementedError" in str(caught.value)
    torch._dynamo.reset()
    same(torch.compile(function)(SQUARE.to("spyre")), function(SQUARE), 1e-4)


def test_aot_inductor_is_refused() -> None:
    class Model(torch.nn.Module):
        def forward(self, a: Tensor) -> Tensor:
            return function(a)

    exported = torch.export.export(Model(), (SQUARE.to("spyre"),))
    with pytest.raises(Exception, match="AOTInductor are not available on spyre"):
        torch._inductor.aoti_compile_and_package(exported)
    same(torch.compile(exported.module())(SQUARE.to("spyre")), function(SQUARE), 1e-4)


@pytest.mark.parametrize("options", [{"freezing": True}, {"benchmark_fusion": True}, {"epilogue_fusion": False}])
def test_other_options(options: dict[str, Any]) -> None:
    with torch.no_grad():
        same(torch.compile(function, options=options)(SQUARE.to("spyre")), function(SQUARE), 1e-4)


def test_importing_torch_imports_no_compiler(run_script: RunScript) -> None:
    loaded = run_script("""
        import sys, torch
        torch.ones(3, device="spyre").sum().item()
        compilers = ("torch._dynamo", "torch._inductor", "torch_spyre.inductor")
        print([name for name in sys.modules if name.startswith(compilers)])
    """).check()
    assert loaded.strip() == "[]"


def test_an_inductor_that_differs_is_refused_by_spyre_only(run_script: RunScript) -> None:
    run_script(
        """
        import torch, torch._inductor.scheduler
        del torch._inductor.scheduler.BaseSchedulerNode.is_cpu
        try:
            torch.compile(torch.sin)(torch.ones(3, device="spyre"))
        except Exception as error:
            assert "written for the Inductor of PyTorch 2.12 to 2.15" in str(error), error
            assert torch.__version__ in str(error) and "is_cpu" in str(error) and "aot_eager" in str(error), error
        else:
            raise AssertionError("compiled")
        torch._dynamo.reset()
        assert torch.compile(torch.sin, backend="aot_eager")(torch.zeros(3, device="spyre")).sum().item() == 0
        torch._inductor.scheduler.BaseSchedulerNode.is_cpu = lambda node: True
        assert torch.compile(torch.sin)(torch.zeros(3)).sum().item() == 0
    """,
        seconds=COMPILER_SECONDS,
    ).check()
