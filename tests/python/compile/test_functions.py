"""Compiled functions of tensors: kernels that are generated, and operators that stay calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from compile.conftest import compiled_as_cpu, same

GENERATOR = torch.Generator().manual_seed(0)

A = torch.randn(33, 70, generator=GENERATOR)
B = torch.randn(70, generator=GENERATOR)
IMAGE = torch.randn(2, 3, 12, 14, generator=GENERATOR)


def test_pointwise_and_views() -> None:
    def function(a: Tensor, b: Tensor) -> Any:
        y = torch.tanh(a) * b + 1
        halves = y.chunk(2, 1)
        return y, torch.where(a > 0, a.exp(), b), torch.cat(halves[::-1], 1).sin(), halves[1].t() + 1, a.t()[3:]

    compiled_as_cpu(function, A, B)


def test_reductions() -> None:
    def function(a: Tensor) -> Any:
        return a.sum(), a.mean(0), a.var(1), a.amax(0), a.std(), a.norm(dim=1), a.logsumexp(0), a.cumsum(1), a.any(1)

    compiled_as_cpu(function, A)


@pytest.mark.xfail(torch.__version__ < "2.14", reason="PyTorch before 2.14 compiles it wrongly for the CPU too")
def test_positions_of_extremes_do_not_depend_on_the_order_of_loops() -> None:
    def function(a: Tensor, cube: Tensor) -> Any:
        turned = cube.permute(2, 0, 1)
        return a.argmax(), a.t().argmax(), a.argmin(0), turned.argmax(), (turned + 1).argmin(), a.max(1)

    compiled_as_cpu(function, A, torch.randn(5, 7, 11))


def test_pooling_positions() -> None:
    def function(x: Tensor) -> Any:
        return functional.max_pool2d(x.transpose(2, 3), (2, 3), return_indices=True), functional.avg_pool2d(x, 2)

    compiled_as_cpu(function, IMAGE)


def test_matrix_products() -> None:
    def function(a: Tensor, b: Tensor, batch: Tensor) -> Any:
        linear = functional.linear(a, a[:5], b[:5])
        return (
            linear.relu(),
            a @ a.t() * 2,
            a @ b,
            torch.bmm(batch, batch.mT),
            torch.einsum("bij,bkj->ik", batch, batch),
        )

    compiled_as_cpu(function, A, B, torch.randn(3, 4, 6), tolerance=1e-4)


def test_softmax_and_normalizations() -> None:
    def function(a: Tensor, x: Tensor) -> Any:
        return (
            a.softmax(-1),
            a.log_softmax(0),
            functional.layer_norm(a, (70,)),
            functional.group_norm(x, 3),
            functional.batch_norm(x, None, None, training=True),
            functional.gelu(a),
        )

    compiled_as_cpu(function, A, IMAGE, tolerance=1e-4)


def test_convolutions() -> None:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Any:
        y = functional.conv2d(x, w, b, padding=1)
        return y.relu(), functional.conv_transpose2d(y, w), functional.conv1d(x[:, :, 0], w[:, :, 0], b) + 1

    # The CPU would rather have other layouts here; on spyre results of convolutions are contiguous.
    compiled_as_cpu(function, IMAGE, torch.randn(8, 3, 3, 3), torch.randn(8), tolerance=1e-4, strides=False)


def test_indexing_and_sorting() -> None:
    def function(a: Tensor, i: Tensor) -> Any:
        rows = i[:, None].expand(4, 70)
        put = a.index_put((i,), a[:4], accumulate=True)
        return a[i], a.gather(0, rows), put, a.scatter_add(0, rows, a[:4]), a.sort(1)[0] + 1, a.topk(3)[1]

    compiled_as_cpu(function, A, torch.tensor([1, 3, 3, 7]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_floating_point_types(dtype: torch.dtype) -> None:
    def function(a: Tensor) -> Any:
        return a + 0.1, a.sigmoid() * 0.3, a.sum(1), a.softmax(-1), a > 0.1, a.float().sin()

    compiled_as_cpu(function, A.to(dtype), tolerance=0.05 if dtype.itemsize == 2 else None)


def test_integers_and_booleans() -> None:
    def function(i: Tensor, j: Tensor, byte: Tensor) -> Any:
        bits = (i > 3) & (j < 5)
        return (
            i // j,
            i % j,
            i >> 1,
            i ^ j,
            i / j,
            i.sum(),
            i.int().prod(),
            ~bits,
            bits.sum(),
            torch.cat([byte, byte]) + 1,
        )

    compiled_as_cpu(function, torch.randint(-50, 50, (33,)), torch.randint(1, 9, (33,)), torch.arange(9).byte())


def test_aliases_and_changes_in_place() -> None:
    def function(a: Tensor, b: Tensor) -> Any:
        a.add_(1)
        flat = a.view(-1)
        flat[2:4].mul_(3)
        b.copy_(a.t())
        return a[1:], flat, b.t(), flat.sin()

    a = torch.randn(4, 4)
    compiled_as_cpu(function, a, a + 1)
    ours = a.to("spyre")
    part, flat, _, _ = torch.compile(function)(ours, torch.empty_like(ours))
    assert part.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() == ours.untyped_storage().data_ptr()


def test_new_tensors_and_constants() -> None:
    def function(a: Tensor) -> Any:
        steps = torch.arange(a.shape[0], device=a.device)
        return (
            a[:, :3] * torch.tensor([1.0, 2.0, 3.0], device=a.device),
            steps[:, None] + a * torch.tensor(2.5),
            steps.float(),
        )

    compiled_as_cpu(function, A)


def test_results_on_the_cpu() -> None:
    compiled = torch.compile(lambda a: ((a * 2).cpu() + 1, a + 1), fullgraph=True)
    on_cpu, on_spyre = compiled(A.to("spyre"))
    assert on_cpu.device.type == "cpu"
    assert torch.equal(on_cpu, A * 2 + 1)
    same(on_spyre, A + 1)


def test_dynamic_shapes() -> None:
    compiled = torch.compile(lambda a, b: ((a @ b).relu().mean(0), a.sum() + a.shape[0]), dynamic=True, fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (3, 7, 31):
            a, b = torch.randn(rows, 8), torch.randn(8, 4)
            mean, total = compiled(a.to("spyre"), b.to("spyre"))
            same(mean, (a @ b).relu().mean(0))
            same(total, a.sum() + rows)


def test_sizes_that_depend_on_data() -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        compiled_as_cpu(lambda a: (a[a > 0] * 2, a.sum().int().item() + a, a.nonzero()), A)


def test_branches_and_loops_inside_the_graph() -> None:
    def function(a: Tensor, i: Tensor) -> Any:
        branch = torch.cond(a.sum() > 0, lambda t: t.sin() * 2, lambda t: t.cos() * 3, (a,))
        loop = torch._higher_order_ops.while_loop(lambda n, _: n < 5, lambda n, t: (n + 1, t * 2), (i, a))
        return branch, loop[1]

    compiled_as_cpu(function, B, torch.tensor(0))


def test_operators_that_stay_calls() -> None:
    def function(a: Tensor, i: Tensor) -> Any:
        square = a @ a.t() + torch.eye(4, device=a.device)
        return torch.linalg.inv(square) + 0, torch.linalg.eigvalsh(square).sin(), i.bincount(minlength=3), a.histc(4)

    compiled_as_cpu(function, torch.randn(4, 6), torch.randint(0, 3, (24,)), tolerance=1e-3)


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
def test_complex_numbers_stay_calls() -> None:
    compiled_as_cpu(lambda a: torch.view_as_real(torch.fft.fft(a) * 2), B)


def test_derivatives_inside_the_graph() -> None:
    def function(w: Tensor, x: Tensor) -> Any:
        return torch.func.vmap(torch.func.grad(lambda row: (row * w).sin().sum()))(x)

    compiled_as_cpu(function, B, A)


def test_results_with_a_cpu_scalar_are_on_the_device() -> None:
    compiled = torch.compile(lambda c, a: (c + a, a * c, torch.where(c > 0, c, a)), fullgraph=True)
    scalar = torch.tensor(2.0)
    expected = scalar + A, A * scalar, scalar.expand(A.shape)
    for ours, theirs in zip(compiled(scalar, A.to("spyre")), expected, strict=True):
        same(ours, theirs, strides=False)


def test_what_fake_tensors_predict_of_auxiliary_results() -> None:
    def function(w: Tensor, i: Tensor, bags: Tensor, x: Tensor) -> Any:
        sums = functional.embedding_bag(i, w, bags, mode="sum")
        most = functional.embedding_bag(i, w, bags, mode="max", include_last_offset=True)
        shuffled = functional.pixel_shuffle(x.to(memory_format=torch.channels_last), 2)
        return sums, most, torch.nonzero_static(x[0, 0] > 0, size=100), shuffled

    indices, bags = torch.tensor([4, 1, 1, 0, 2]), torch.tensor([0, 2, 5])
    compiled_as_cpu(function, A[:5], indices, bags, torch.randn(2, 4, 6, 7))


def test_gradients_of_embedding_bags() -> None:
    def function(w: Tensor, i: Tensor, bags: Tensor) -> Any:
        totals = [functional.embedding_bag(i, w, bags, mode=mode).sin().sum() for mode in ("sum", "mean", "max")]
        return torch.autograd.grad(totals, w)

    indices, bags = torch.tensor([4, 1, 1, 0, 2]), torch.tensor([0, 2])
    compiled_as_cpu(function, A[:5].clone().requires_grad_(), indices, bags, fullgraph=False)


def test_streams_order_nothing() -> None:
    stream = torch.Stream("spyre")

    def function(a: Tensor) -> Tensor:
        with stream:
            b = a + 1
        stream.record_event().synchronize()
        return b * 2

    same(torch.compile(function)(A.to("spyre")), (A + 1) * 2)


def test_graph_breaks() -> None:
    stream = torch.spyre.Stream()
    ours = A.to("spyre")

    def function(a: Tensor) -> Any:
        b = a + 1
        with torch.spyre.stream(stream):
            c = b * 2
        torch.spyre.synchronize()
        torch.spyre.current_stream().wait_event(stream.record_event())
        return c + (torch.spyre.memory_allocated() > 0) + torch.spyre.device_count()

    same(torch.compile(function)(ours), (A + 1) * 2 + 1 + torch.spyre.device_count())


def test_a_graph_break_says_why() -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported, match="torch.spyre functions run outside of compiled graphs"):
        torch.compile(lambda a: a + torch.spyre.memory_allocated(), fullgraph=True)(A.to("spyre"))


def test_answers_that_never_change_are_constants() -> None:
    compiled = torch.compile(lambda a: a + torch.spyre.device_count() + torch.spyre.is_available(), fullgraph=True)
    same(compiled(A.to("spyre")), A + torch.spyre.device_count() + 1)


def test_mixed_devices_are_rejected() -> None:
    with pytest.raises(RuntimeError, match="on the same device|two different devices"):
        torch.compile(lambda a, b: a + b)(A.to("spyre"), A)


def test_the_cpu_is_compiled_for_as_before() -> None:
    compiled = torch.compile(lambda a: (a.argmax(1), (a * 2).sum(0)), fullgraph=True)
    for ours, theirs in zip(compiled(A), (A.argmax(1), (A * 2).sum(0)), strict=True):
        assert ours.device.type == "cpu"
        torch.testing.assert_close(ours, theirs)
