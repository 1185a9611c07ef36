"""PyTorch's descriptions of its operators (OpInfo), taken from the installed torch, and the samples to run."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

# PyTorch's test modules need it, and free-threaded environments do not have it.
pytest.importorskip("expecttest", reason="not among this environment's packages")


@contextmanager
def quietly() -> Iterator[None]:
    """For imports from torch.testing._internal, which use what torch has deprecated and forbid all later code to assign
    to torch.backends. Other tests may do that.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    setattr(torch.backends, "__allow_nonbracketed_mutation_flag", True)


with quietly():
    from torch.testing._internal.autograd_function_db import autograd_function_db
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.custom_op_db import custom_op_db
    from torch.testing._internal.hop_db import hop_db
    from torch.testing._internal.opinfo.definitions.nested import njt_op_db

__all__ = [
    "DATA_TYPES",
    "EIGHT_BIT_TYPES",
    "SPARSE_LAYOUTS",
    "autograd_function_db",
    "custom_op_db",
    "hop_db",
    "njt_op_db",
    "op_db",
]

DATA_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64)

EIGHT_BIT_TYPES = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)

SPARSE_LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def cases(operators: Iterable[Any], dtypes: Sequence[torch.dtype] = DATA_TYPES) -> list[Any]:
    """A pytest parameter for each operator and each of `dtypes` that its CPU kernel supports."""
    return [
        pytest.param(operator, dtype, id=f"{operator.full_name}-{str(dtype).removeprefix('torch.')}")
        for operator in operators
        for dtype in dtypes
        if operator.supports_dtype(dtype, "cpu")
    ]


def chosen(samples: Iterable[Any], everything: bool, count: int) -> list[Any]:
    """All samples, or `count` of them that are spread evenly: operators list easy ones first."""
    found = list(samples)
    if everything or len(found) <= count:
        return found
    return [found[round(position * (len(found) - 1) / (count - 1))] for position in range(count)]
