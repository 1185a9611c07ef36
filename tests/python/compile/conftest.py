"""A cache of Inductor's own for the run, and comparing compiled functions with eager ones on the CPU."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

from conftest import REAL_STDERR, copied

COMPILER_SECONDS = 600
"""For a test, or a script, that waits for the C++ compiler: a busy machine takes minutes for what takes seconds."""


OF_PYTORCH_ITSELF = (
    # Dynamo looks whether what it goes on with after a graph break has a gradient.
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
    # PyTorch 2.12 uses what it has deprecated, and looks for CUDA's libraries.
    "ignore::DeprecationWarning:torch",
    "ignore:.torch.jit:DeprecationWarning",
    "ignore:.isinstance.treespec, LeafSpec:FutureWarning",
    "ignore:CUTLASS backend is not supported:UserWarning",
)
"""Warnings about what PyTorch does itself while it compiles."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in OF_PYTORCH_ITSELF:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(autouse=True)
def watchdog(pytestconfig: pytest.Config) -> Iterator[None]:
    """In the place of the one for all tests."""
    faulthandler.dump_traceback_later(COMPILER_SECONDS, exit=True, file=pytestconfig.stash[REAL_STDERR])
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session", autouse=True)
def inductor_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Generated code of this run only: nothing that an earlier version of the package has made is used."""
    previous = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("inductor"))
    yield
    if previous is None:
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]
    else:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = previous


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    torch._dynamo.reset()


def compiled_as_cpu(
    function: Callable[..., object],
    *arguments: object,
    tolerance: float | None = None,
    strides: bool = True,
    **options: Any,
) -> None:
    """Asserts that compiled on spyre, without a graph break, a function gives what it gives on the CPU.

    Results and changed arguments have the same values and, unless `strides` is False, the same strides.
    """
    options.setdefault("fullgraph", True)
    on_cpu = [copied(argument, "cpu") for argument in arguments]
    on_spyre = [copied(argument, "spyre") for argument in arguments]
    expected = function(*on_cpu)
    actual = torch.compile(function, **options)(*on_spyre)
    for ours, theirs in zip(leaves((actual, on_spyre)), leaves((expected, on_cpu)), strict=True):
        same(ours, theirs, tolerance, strides)


def leaves(tree: object) -> list[object]:
    return list(torch.utils._pytree.tree_leaves(tree))


def same(actual: object, expected: object, tolerance: float | None = None, strides: bool = True) -> None:
    if not isinstance(expected, torch.Tensor):
        assert actual == expected
        return
    assert isinstance(actual, torch.Tensor)
    assert actual.device == torch.device("spyre", 0)
    if strides:
        assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=tolerance, atol=tolerance, equal_nan=True)
