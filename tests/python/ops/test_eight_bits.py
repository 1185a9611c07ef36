"""What the operator database does not say about float8: conversions, copies, views, comparisons, and what fails.

Calls are made on the CPU and on the device. Either both give the same bits, or both raise the same type of error with
the same words but for the name of the kernel's device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ops.catalogue import EIGHT_BIT_TYPES

OTHERS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "clone": lambda a: a.clone(),
    "view": lambda a: a.view(4, 8),
    "transposed copy": lambda a: a.t().contiguous(),
    "part": lambda a: a[1:5, ::2],
    "stack": lambda a: torch.stack([a, a]),
    "cat": lambda a: torch.cat([a, a], 1),
    "flip": lambda a: a.flip(0),
    "index": lambda a: a[torch.tensor([3, 0, 0])],
    "index_select": lambda a: a.index_select(1, torch.tensor([1, 0]).to(a.device)),
    "gather": lambda a: a.gather(0, torch.zeros(2, 4, dtype=torch.int64).to(a.device)),
    "where": lambda a: torch.where(a.float() > 0, a, a.flip(0)),
    "full": lambda a: torch.full_like(a, 2.0),
    "fill": lambda a: a.clone().fill_(0.5),
    "zero": lambda a: a.clone().zero_(),
    "masked_fill": lambda a: a.masked_fill(a.float() > 0, 1.0),
    "equal": lambda a: a == a.flip(0),
    "isnan": lambda a: a.isnan(),
    "add": lambda a: a + a,
    "mul": lambda a: a * 2,
    "neg": lambda a: -a,
    "abs": lambda a: a.abs(),
    "sum": lambda a: a.sum(),
    "max": lambda a: a.max(),
    "matmul": lambda a: a @ a.t(),
    "softmax": lambda a: a.softmax(0),
    "sort": lambda a: a.sort().values,
    "random": lambda a: a.clone().uniform_(),
}


def values(dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(11)
    return (torch.rand(8, 4, generator=generator) * 4 - (0 if dtype == torch.float8_e8m0fnu else 2)).to(dtype)


def bits(tensor: Tensor) -> Tensor:
    tensor = tensor.cpu().contiguous()
    return tensor.view(torch.uint8) if tensor.dtype in EIGHT_BIT_TYPES else tensor


def outcome(call: Callable[[Tensor], Tensor], argument: Tensor) -> Tensor | Exception:
    try:
        return call(argument)
    except (RuntimeError, NotImplementedError) as error:
        return error


@pytest.mark.parametrize("dtype", EIGHT_BIT_TYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_call(name: str, dtype: torch.dtype, counts: Counter[str]) -> None:
    cpu = values(dtype)
    torch.manual_seed(5)
    expected = outcome(CALLS[name], cpu)
    torch.manual_seed(5)
    result = outcome(CALLS[name], cpu.to("spyre"))
    if isinstance(expected, Exception):
        assert type(result) is type(expected)
        assert str(result).splitlines()[0] == str(expected).splitlines()[0]
        counts["float8 calls that fail on both"] += 1
        return
    assert isinstance(result, Tensor), result
    assert result.device.type == "spyre"
    assert result.dtype == expected.dtype
    assert result.stride() == expected.stride()
    assert torch.equal(bits(result), bits(expected))
    counts["float8 calls"] += 1


@pytest.mark.parametrize("dtype", EIGHT_BIT_TYPES, ids=str)
@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_conversion(other: torch.dtype, dtype: torch.dtype, counts: Counter[str]) -> None:
    wide = torch.tensor([0.0, 0.1, 1.0, 2.5, 448.0, 1e6, float("inf"), float("nan")], dtype=other)
    for source, target in ((wide, dtype), (wide.to(dtype), other)):
        expected = bits(source.to(target))
        for result in (source.to("spyre").to(target), source.to("spyre", target), source.to(target).to("spyre")):
            torch.testing.assert_close(bits(result), expected, rtol=0, atol=0, equal_nan=True)
        counts["float8 conversions"] += 1


def test_scaled_product() -> None:
    left, right = values(torch.float8_e4m3fn).repeat(4, 4), values(torch.float8_e4m3fn).repeat(4, 4)
    one = torch.ones(())
    expected = torch._scaled_mm(left, right.t(), one, one, out_dtype=torch.float32)
    on_device = [each.to("spyre") for each in (left, right, one)]
    result = torch._scaled_mm(on_device[0], on_device[1].t(), on_device[2], on_device[2], out_dtype=torch.float32)
    assert result.device.type == "spyre"
    assert torch.equal(result.cpu(), expected)
