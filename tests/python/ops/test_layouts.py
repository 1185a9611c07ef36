"""Tensors that are not dense on spyre: sparse, nested and quantized ones, compared with CPU."""

from __future__ import annotations

import copy
import io
import unittest
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from ops import calls, catalogue, exceptions
from ops.comparison import Expectations, assert_same
from ops.device_copies import Copies

# PyTorch calls all of them prototypes, in warnings.
pytestmark = pytest.mark.filterwarnings("ignore")


FEW = 3
"""Samples of an operator and layout that run without `--all-samples`."""

MOST_ELEMENTS = 100_000
"""Gradients of the samples of `mul` with millions of elements do not fit on the device that the tests have."""

BLOCKED = (torch.sparse_bsr, torch.sparse_bsc)


def layout_name(layout: torch.layout) -> str:
    return str(layout).removeprefix("torch.")


def sparse_cases() -> list[Any]:
    return [
        pytest.param(operator, layout, dtype, id=f"{case.id}-{layout_name(layout)}")
        for case in catalogue.cases(catalogue.op_db, (torch.float32, torch.int64, torch.complex64))
        for operator, dtype in [case.values]
        for layout in catalogue.SPARSE_LAYOUTS
        if operator.supports_sparse_layout(layout)
    ]


def samples_of(operator: Any, layout: torch.layout, dtype: torch.dtype, requires_grad: bool) -> list[Any]:
    """PyTorch's samples for the layout; where it has none, its dense samples with sparse matrices for inputs."""
    try:
        samples = list(operator.sample_inputs_sparse(layout, "cpu", dtype, requires_grad=requires_grad))
        return [sample for sample in samples if sample.input.numel() <= MOST_ELEMENTS]
    except (NotImplementedError, unittest.SkipTest):
        block = (1, 1) if layout in BLOCKED else None
        samples = [each for each in operator.sample_inputs("cpu", dtype) if each.input.dim() == 2]
        for sample in samples:
            sparse = sample.input.to_sparse(layout=layout, blocksize=block)
            sample.input = sparse.requires_grad_(requires_grad)
        return samples


@pytest.mark.parametrize(("operator", "layout", "dtype"), sparse_cases())
def test_sparse(
    operator: Any, layout: torch.layout, dtype: torch.dtype, counts: Counter[str], all_samples: bool
) -> None:
    for sample in catalogue.chosen(samples_of(operator, layout, dtype, False), all_samples, FEW):
        done = calls.compare(calls.forward(operator, sample), Expectations())
        counts[f"sparse forward calls{'' if done else ' that fail on both'}"] += 1
    if operator.supports_autograd and dtype in operator.supported_backward_dtypes("cpu"):
        for sample in catalogue.chosen(samples_of(operator, layout, dtype, True), all_samples, FEW):
            done = calls.compare(calls.backward(operator, sample), Expectations())
            counts[f"sparse backward calls{'' if done else ' that fail on both'}"] += 1


def jagged_cases() -> list[Any]:
    """The operators for which PyTorch has jagged samples."""
    return catalogue.cases([each for each in catalogue.njt_op_db if each.supports_njt], (torch.float32,))


@pytest.mark.parametrize(("operator", "dtype"), jagged_cases())
def test_jagged(operator: Any, dtype: torch.dtype, counts: Counter[str], all_samples: bool) -> None:
    expectations = Expectations(values=operator.full_name not in exceptions.UNINITIALISED)
    for requires_grad in (False, operator.supports_autograd):
        samples = operator.sample_inputs("cpu", dtype, requires_grad=requires_grad)
        for sample in catalogue.chosen(samples, False, 50 if all_samples else FEW):
            call = (calls.backward if requires_grad else calls.forward)(operator, sample)
            done = calls.compare(call, expectations)
            counts[f"jagged calls{'' if done else ' that fail on both'}"] += 1


DENSE = torch.tensor([[0.0, 1.5, 0.0], [2.0, 0.0, -3.0]])
FACTOR = torch.linspace(-1, 1, 6).reshape(3, 2)

SPARSE: dict[str, Callable[[torch.Tensor], object]] = {
    "from indices and values": lambda d: torch.sparse_coo_tensor(
        torch.tensor([[0, 1, 1], [1, 0, 0]], device=d.device), d[:, 1:].flatten()[:3]
    ),
    "coalesce": lambda d: (d.to_sparse() + d.to_sparse()).coalesce(),
    "in place": lambda d: d.to_sparse().mul_(3).add_(d.to_sparse()),
    "values are a view": lambda d: d.to_sparse()._values().neg_(),
    "a view of the values changes the tensor": lambda d: [s := d.to_sparse(), s._values().neg_()],
    "zero": lambda d: d.to_sparse().zero_(),
    "resize": lambda d: d.to_sparse().sparse_resize_((4, 5), 2, 0),
    "resize and clear": lambda d: d.to_sparse().sparse_resize_and_clear_((2, 2), 1, 1),
    "out": lambda d: torch.add(d.to_sparse(), d.to_sparse(), out=torch.empty_like(d.to_sparse())),
    "mm": lambda d: torch.sparse.mm(d.to_sparse(), d.t()),
    "mm of two": lambda d: torch.sparse.mm(d.to_sparse(), d.t().to_sparse()),
    "softmax": lambda d: torch.sparse.softmax(d.to_sparse(), 1),
    "sum": lambda d: torch.sparse.sum(d.to_sparse(), 0),
    "mask": lambda d: (d + 1).sparse_mask(d.to_sparse()),
    "to csr": lambda d: d.to_sparse().to_sparse_csr(),
    "csr matmul": lambda d: d.to_sparse_csr() @ d.t(),
    "csr in place": lambda d: d.to_sparse_csr().mul_(2),
    "csr to csc": lambda d: d.to_sparse_csr().to_sparse_csc(),
    "bsr": lambda d: d.to_sparse_bsr((1, 3)),
    "clone": lambda d: d.to_sparse().clone(),
    "copy": lambda d: torch.empty_like(d.to_sparse()).copy_(d.to_sparse()),
    "empty": lambda d: torch.empty(2, 3, layout=torch.sparse_coo, device=d.device),
}


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_tensors(name: str) -> None:
    assert_same(SPARSE[name](DENSE.to("spyre")), SPARSE[name](DENSE))


@pytest.mark.parametrize("layout", catalogue.SPARSE_LAYOUTS, ids=layout_name)
def test_sparse_moves_between_devices(layout: torch.layout) -> None:
    block = (1, 1) if layout in BLOCKED else None
    sparse = DENSE.to_sparse(layout=layout, blocksize=block)
    moved = sparse.to("spyre")
    assert_same(moved, sparse)
    assert moved.values().device.type == "spyre"
    back = moved.cpu()
    assert back.device.type == back.values().device.type == "cpu"
    torch.testing.assert_close(back, sparse)


def test_sparse_memory_is_the_devices() -> None:
    before = torch.spyre.memory_allocated()
    sparse = torch.ones(64, 64, device="spyre").to_sparse()
    assert torch.spyre.memory_allocated() - before >= 64 * 64 * (4 + 2 * 8)
    del sparse
    assert torch.spyre.memory_allocated() == before


@pytest.mark.parametrize("operation", [torch.add, torch.sparse.mm, torch.mul])
def test_sparse_does_not_mix_with_cpu(operation: Callable[..., object]) -> None:
    square = torch.eye(3)
    with pytest.raises(RuntimeError, match="on the same device"):
        operation(square.to("spyre").to_sparse(), square.to_sparse())


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_sparse_gradients_of_embeddings(mode: str) -> None:
    def gradients(copies: Copies) -> object:
        weight, indices = copies.of((FACTOR.clone().requires_grad_(), torch.tensor([2, 0, 2])))
        first = torch.autograd.grad(functional.embedding(indices, weight, sparse=True).pow(2).sum(), weight)
        bags = functional.embedding_bag(indices[None], weight, mode=mode, sparse=True)
        return first, torch.autograd.grad(bags.pow(2).sum(), weight)

    assert calls.compare(gradients, Expectations())


def test_sparse_gradients_train() -> None:
    def trained(copies: Copies) -> object:
        embedding = torch.nn.Embedding.from_pretrained(copies.of(FACTOR), freeze=False, sparse=True)
        optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
        for step in range(4):
            embedding(torch.tensor([step % 3, 0], device=copies.device)).pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return embedding.weight

    assert calls.compare(trained, Expectations())


QUANTIZED: dict[str, Callable[[torch.Tensor], object]] = {
    "per tensor": lambda d: per_tensor(d).int_repr(),
    "parameters": lambda d: (per_tensor(d).q_scale(), per_tensor(d).q_zero_point(), per_tensor(d).qscheme()),
    "dequantize": lambda d: per_tensor(d).dequantize(),
    "per channel": lambda d: (per_channel(d).int_repr(), per_channel(d).q_per_channel_scales()),
    "views": lambda d: per_tensor(d)[1].view(-1).int_repr(),
    "operators": lambda d: functional.relu(per_tensor(d)).dequantize(),
    "cat": lambda d: torch.cat([per_tensor(d), per_tensor(d)]).dequantize(),
    "compare": lambda d: per_tensor(d) > per_tensor(-d),
    "clone": lambda d: per_tensor(d).clone().int_repr(),
    "transpose": lambda d: per_tensor(d).t().contiguous().int_repr(),
    "max_pool": lambda d: functional.max_pool2d(per_tensor(d)[None, None], 2).dequantize(),
    "item": lambda d: per_tensor(d)[1, 0].item(),
    "fake": lambda d: torch.fake_quantize_per_tensor_affine(d, 0.1, 3, 0, 255),
    "dynamic": lambda d: torch.quantize_per_tensor_dynamic(d, torch.quint8, False).int_repr(),
}


def per_tensor(values: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(values, 0.05, 60, torch.quint8)


def per_channel(values: torch.Tensor) -> torch.Tensor:
    scales = torch.tensor([0.05, 0.1], device=values.device)
    return torch.quantize_per_channel(values, scales, torch.tensor([0, 3], device=values.device), 0, torch.qint8)


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized(name: str) -> None:
    assert_same(QUANTIZED[name](DENSE.to("spyre")), QUANTIZED[name](DENSE))


@pytest.mark.parametrize("quantize", [per_tensor, per_channel])
def test_quantized_moves_between_devices(quantize: Callable[[torch.Tensor], torch.Tensor]) -> None:
    on_cpu = quantize(DENSE)
    moved = on_cpu.to("spyre")
    assert moved.device.type == "spyre"
    assert torch.equal(moved.int_repr().cpu(), on_cpu.int_repr())
    assert torch.equal(moved.cpu(), on_cpu)


@pytest.mark.parametrize("quantize", [per_tensor, per_channel])
def test_quantized_is_saved_and_copied(quantize: Callable[[torch.Tensor], torch.Tensor]) -> None:
    on_spyre = quantize(DENSE.to("spyre"))
    stream = io.BytesIO()
    torch.save(on_spyre, stream)
    for location in ("spyre", "cpu"):
        stream.seek(0)
        loaded = torch.load(stream, map_location=location)
        assert loaded.device.type == location
        assert torch.equal(loaded.cpu(), quantize(DENSE))
    copied = copy.deepcopy(on_spyre)
    assert_same(copied, quantize(DENSE))
    assert copied.data_ptr() != on_spyre.data_ptr()


NESTED: dict[str, Callable[[torch.Tensor], object]] = {
    "itself": lambda d: nested(d),
    "unbind": lambda d: nested(d).unbind(),
    "add": lambda d: nested(d) + nested(d),
    "in place": lambda d: nested(d).mul_(2),
    "padded": lambda d: nested(d).to_padded_tensor(-1.0),
    "matmul": lambda d: torch.matmul(nested(d), nested(d).transpose(1, 2)),
    "linear": lambda d: functional.linear(nested(d), FACTOR.t().to(d.device)),
    "softmax": lambda d: nested(d).softmax(-1),
    "clone": lambda d: nested(d).clone(),
    "to": lambda d: torch.nested.nested_tensor([DENSE, DENSE[:1]]).to(d.device),
}


def nested(values: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([values, values[:1]])


@pytest.mark.parametrize("name", NESTED)
def test_strided_nested(name: str) -> None:
    assert_same(NESTED[name](DENSE.to("spyre")), NESTED[name](DENSE))


def test_a_jagged_tensor_needs_its_parts() -> None:
    with pytest.raises(NotImplementedError, match="a tensor of the layout Jagged cannot be created without its parts"):
        torch.empty(2, layout=torch.jagged, device="spyre")


def test_gradients_of_strided_nested() -> None:
    def gradient(copies: Copies) -> object:
        leaf: Any = copies.of(DENSE.clone().requires_grad_())
        both = torch.nested.as_nested_tensor([leaf, leaf[:1]])
        return torch.autograd.grad(both.to_padded_tensor(0.0).pow(2).sum(), leaf)

    assert calls.compare(gradient, Expectations())


def test_mkldnn_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="'aten::to_mkldnn' is not available on spyre.*Move the tensor"):
        DENSE.to("spyre").to_mkldnn()
