"""Operators with tensors on several devices: rejected where CUDA rejects them, accepted where it accepts them.

All memory is host memory here, so a kernel would compute with any mixture.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

Tensors = Callable[[torch.Tensor], torch.Tensor]

C = torch.ones(3, 3)
INDEX = torch.tensor([0, 1])
INDICES = torch.zeros(3, 3, dtype=torch.int64)
SCALAR = torch.tensor(2.0)


def gradient_of_attention(gradient: torch.Tensor, each: torch.Tensor) -> object:
    operator = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward
    wanted = [True, True, True, False]
    return operator(
        gradient, each, each, each, None, wanted, each, each[0], INDEX, INDEX, 3, 3, 0.0, False, INDEX, INDEX
    )


# Each is given a tensor of ones on the device.
REJECTED: dict[str, Callable[[torch.Tensor], object]] = {
    "bmm": lambda s: torch.bmm(s[None], C[None]),
    "baddbmm": lambda s: torch.baddbmm(s[None], s[None], C[None]),
    "lerp": lambda s: torch.lerp(s, s, C),
    "addcmul": lambda s: torch.addcmul(s, C, s),
    "a result on the CPU": lambda s: torch.add(s, s, out=torch.empty(3, 3)),
    "a result of CPU tensors": lambda s: torch.add(C, C, out=torch.empty(3, 3, device="spyre")),
    "an unstructured result on the CPU": lambda s: torch.nonzero(s, out=torch.empty(0, dtype=torch.int64)),
    "cat": lambda s: torch.cat([s, s], out=torch.empty(0)),
    "stack": lambda s: torch.stack([C, s]),
    "gather": lambda s: s.gather(0, INDICES),
    "scatter": lambda s: s.scatter(0, INDICES, 1.0),
    "scatter_add to the CPU": lambda s: C.scatter_add(0, INDICES.to("spyre"), C),
    "index_select": lambda s: s.index_select(0, INDEX),
    "take": lambda s: s.take(INDEX),
    "index_add": lambda s: s.index_add(0, INDEX, C[:2]),
    "masked_fill": lambda s: s.masked_fill(C > 0, 1.0),
    "masked_select": lambda s: s.masked_select(C > 0),
    "put": lambda s: s.put(INDEX, torch.ones(2)),
    "cross_entropy": lambda s: functional.cross_entropy(s, INDICES[0]),
    "nll_loss": lambda s: functional.nll_loss(C, INDICES[0].to("spyre")),
    "binary_cross_entropy": lambda s: functional.binary_cross_entropy(s, C),
    "mse_loss": lambda s: functional.mse_loss(s, C),
    "batch_norm": lambda s: functional.batch_norm(s, torch.zeros(3), torch.ones(3)),
    "group_norm": lambda s: functional.group_norm(s, 1, C[0]),
    "linear with a bias": lambda s: functional.linear(s, s, C[0]),
    "convolution with a bias": lambda s: functional.conv2d(s[None, None], s[None, None], torch.ones(1)),
    "searchsorted": lambda s: torch.searchsorted(s[0], C[0]),
    "isin": lambda s: torch.isin(s, C),
    "cdist": lambda s: torch.cdist(s, C),
    "solve": lambda s: torch.linalg.solve(s, C),
    "solve_triangular": lambda s: torch.linalg.solve_triangular(s, C, upper=True),
    "pow": lambda s: torch.pow(s, C),
    "a scalar on the device with a CPU tensor": lambda s: C + SCALAR.to("spyre"),
    "in place on the CPU": lambda s: C.clone().add_(SCALAR.to("spyre")),
    "a CPU scalar changed in place": lambda s: SCALAR.clone().add_(s[0, 0]),
    "a CPU scalar as result": lambda s: torch.mul(s[0, 0], 2, out=torch.empty(())),
    "a CPU scalar as result of a reduction": lambda s: torch.sum(s, (0, 1), out=torch.empty(())),
    "a CPU scalar as result of the fallback": lambda s: torch.std(s[0], 0, out=torch.empty(())),
    "einsum": lambda s: torch.einsum("ij,jk", s, C),
    "kron": lambda s: torch.kron(s, C),
    "foreach": lambda s: torch._foreach_add([s, s], [C, C]),
    "grid_sample": lambda s: functional.grid_sample(s[None, None], torch.zeros(1, 2, 2, 2), align_corners=True),
    "bincount": lambda s: torch.bincount(INDEX.to("spyre"), torch.ones(2)),
    "attention with a mask": lambda s: functional.scaled_dot_product_attention(
        s[None, None], s[None, None], s[None, None], C
    ),
    "gradient of an LSTM cell": lambda s: torch.ops.aten._thnn_fused_lstm_cell_backward_impl(
        C, None, s, s, s.repeat(1, 4), True
    ),
    "gradient of a GRU cell": lambda s: torch.ops.aten._thnn_fused_gru_cell_backward(s, C.repeat(1, 5), True),
    "gradient of attention": lambda s: gradient_of_attention(C[None, None], s[None, None]),
    "dot": lambda s: torch.dot(s[0], C[0]),
    "stft": lambda s: torch.stft(torch.ones(64, device="spyre"), 16, window=torch.ones(16), return_complex=True),
}

ACCEPTED: dict[str, tuple[Tensors, Tensors]] = {
    "a CPU scalar": (lambda s: s + SCALAR, lambda s: C + SCALAR),
    "a CPU scalar in place": (lambda s: s.clone().mul_(SCALAR), lambda s: C.clone().mul_(SCALAR)),
    "a CPU condition": (lambda s: torch.where(SCALAR > 0, s, -s), lambda s: torch.where(SCALAR > 0, C, -C)),
    "CPU indices": (lambda s: s[INDEX], lambda s: C[INDEX]),
    "a CPU mask as index": (lambda s: s[C > 0], lambda s: C[C > 0]),
    "a CPU scalar put": (
        lambda s: s.clone().index_put_((INDEX,), SCALAR),
        lambda s: C.clone().index_put_((INDEX,), SCALAR),
    ),
    "copying": (lambda s: torch.zeros_like(s).copy_(C), lambda s: torch.zeros_like(C).copy_(C)),
    "a CPU scalar for lists": (
        lambda s: torch.stack(torch._foreach_mul([s], SCALAR)),
        lambda s: torch.stack(torch._foreach_mul([C], SCALAR)),
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_rejected(name: str) -> None:
    with pytest.raises(RuntimeError, match="(on|in) the same device"):
        REJECTED[name](C.to("spyre"))


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str) -> None:
    actual, expected = ACCEPTED[name]
    result = actual(C.to("spyre"))
    assert result.device.type == "spyre"
    assert torch.equal(result.cpu(), expected(C))


def test_an_element_fills_tensors_on_any_device() -> None:
    value = SCALAR.to("spyre")
    assert torch.empty(3).fill_(value).tolist() == [2, 2, 2]
    assert torch.empty(3, device="spyre").fill_(SCALAR).tolist() == [2, 2, 2]
    target = torch.zeros(2)
    target[1] = value
    assert target.tolist() == [0, 2]


def test_gradients_on_another_device_are_rejected() -> None:
    parameter = torch.nn.Parameter(C.to("spyre"))
    with pytest.raises(RuntimeError, match="attempting to assign a gradient with device type 'cpu'"):
        parameter.grad = C
