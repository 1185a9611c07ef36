"""Operators on spyre give what they give on CPU: values, layout, aliasing, in-place effects."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from conftest import on_both

A = torch.arange(12.0).reshape(3, 4) / 7 - 0.5
B = torch.linspace(-2, 2, 12).reshape(3, 4)
SQUARE = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 5.0]])
COMPLEX = torch.complex(A, B)
IMAGE = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
INDEX = torch.tensor([2, 0, 1])
NHWC = torch.channels_last

CASES: dict[str, tuple[Callable[..., object], tuple[object, ...]]] = {
    "add": (torch.add, (A, B)),
    "add_scalar": (lambda a: a + 2, (A,)),
    "add_int_and_float_scalar": (lambda a: a + 2.5, (INDEX,)),
    "add_transposed": (lambda a, b: a.t() + b.t(), (A, B)),
    "mul_broadcast": (lambda a: a * a[:, :1], (A,)),
    "same_argument_twice": (lambda a: torch.mul(a, a), (A,)),
    "matmul": (lambda a, b: a @ b.t(), (A, B)),
    "addmm_out": (lambda a, b: torch.addmm(torch.ones_like(a[:, :3]), a, b.t()), (A, B)),
    "einsum": (lambda a, b: torch.einsum("ij,kj->ik", a, b), (A, B)),
    "softmax": (lambda a: a.softmax(-1), (A,)),
    "sum_dim": (lambda a: a.sum(0, keepdim=True), (A,)),
    "mean_var": (lambda a: torch.var_mean(a, 1), (A,)),
    "max_with_indices": (lambda a: tuple(torch.max(a, 1)), (B,)),
    "sort": (lambda a: tuple(a.sort(1, descending=True)), (B,)),
    "topk": (lambda a: tuple(a.topk(2)), (B,)),
    "unique": (lambda i: torch.unique(i, return_counts=True), (torch.tensor([3, 1, 3, 2, 1]),)),
    "nonzero": (lambda a: a.nonzero(), (B > 0,)),
    "cat": (lambda a, b: torch.cat([a, b], 1), (A, B)),
    "stack": (lambda a, b: torch.stack([a, b]), (A, B)),
    "where": (lambda a, b: torch.where(a > 0, a, b), (A, B)),
    "masked_select": (lambda a: a[a > 0], (A,)),
    "index": (lambda a, i: a[i], (A, INDEX)),
    "index_put": (lambda a, i: a.index_put_((i, i), torch.tensor(9.0)), (A, INDEX)),
    "index_add": (lambda a, i, b: a.index_add_(0, i, b), (A, INDEX, B)),
    "gather": (lambda a, i: a.gather(1, i[:, None]), (A, INDEX)),
    "scatter_add": (lambda a, i, b: a.scatter_add(0, i[None], b[:1, :3].clone()), (A, INDEX, B)),
    "embedding": (lambda w, i: functional.embedding(i, w), (A, INDEX)),
    "cumsum": (lambda a: a.cumsum(1), (A,)),
    "pixel_shuffle_channels_last": (
        lambda x: functional.pixel_shuffle(x.repeat(1, 4, 1, 1).to(memory_format=NHWC), 2),
        (IMAGE,),
    ),
    "pixel_unshuffle_channels_last": (lambda x: functional.pixel_unshuffle(x.to(memory_format=NHWC), 2), (IMAGE,)),
    "clamp_tensor": (lambda a, b: a.clamp(min=b), (A, B)),
    "solve": (lambda m, a: torch.linalg.solve(m, a), (SQUARE, A)),
    "solve_that_conjugates_lazily": (
        lambda m, c: torch.linalg.lu_solve(*torch.linalg.lu_factor(m * 1j), c[:, :3], left=False),
        (SQUARE, COMPLEX),
    ),
    "efficient_zero": (lambda a: torch._efficientzerotensor(a.shape, device=a.device) + a, (A,)),
    "sgn_gradient": (lambda a: torch.autograd.grad(a.sgn().sum(), a), (A.clone().requires_grad_(),)),
    "silu_gradient": (lambda a: torch.autograd.grad(functional.silu(a).sum(), a), (A.clone().requires_grad_(),)),
    "cholesky": (torch.linalg.cholesky, (SQUARE,)),
    "svdvals": (torch.linalg.svdvals, (A,)),
    "fft": (lambda a: torch.fft.fft(a), (A,)),
    "hfft": (lambda a: torch.fft.hfft(a), (COMPLEX,)),
    "conj_physical": (lambda c: c.conj().resolve_conj(), (COMPLEX,)),
    "conj_matmul": (lambda c: c.conj() @ c.t(), (COMPLEX,)),
    "conj_clone": (lambda c: c.conj().clone(), (COMPLEX,)),
    "negative_view": (lambda c: c.conj().imag.clone(), (COMPLEX,)),
    "view_as_real": (lambda c: torch.view_as_real(c), (COMPLEX,)),
    "complex_inplace_on_conj": (lambda c: c.conj().mul_(2j) * 1, (COMPLEX,)),
    "unfold": (lambda a: a.unfold(1, 2, 1) * 2, (A,)),
    "diagonal": (lambda a: a.diagonal().clone(), (A,)),
    "expand": (lambda a: a[:, :1].expand(3, 5).clone(), (A,)),
    "flip": (lambda a: a.flip(1), (A,)),
    "roll": (lambda a: a.roll(1, 0), (A,)),
    "split": (lambda a: list(a.split(2, 1)), (A,)),
    "meshgrid": (lambda a: list(torch.meshgrid(a[0], a[1], indexing="ij")), (A,)),
    "tril": (lambda a: a.tril(), (A,)),
    "bincount": (lambda i: i.bincount(), (INDEX,)),
    "searchsorted": (lambda a, b: torch.searchsorted(a[0].sort()[0].contiguous(), b), (A, B)),
    "to_dtype": (lambda a: a.to(torch.float16), (A,)),
    "to_bool": (lambda a: a.bool(), (A,)),
    "bitwise": (lambda i: (i << 2) ^ 1, (INDEX,)),
    "add_inplace": (lambda a, b: a.add_(b, alpha=3), (A, B)),
    "transpose_inplace": (lambda a: a.t_(), (A,)),
    "squeeze_inplace": (lambda a: a.unsqueeze_(0).squeeze_(0), (A,)),
    "copy_strided": (lambda a, b: a.t().copy_(b.t()), (A, B)),
    "copy_broadcast": (lambda a, b: a.copy_(b[:1]), (A, B)),
    "fill_zero": (lambda a: a.zero_(), (A,)),
    "foreach": (lambda a, b: torch._foreach_add([a, b], [b, a], alpha=2), (A, B)),
    "foreach_inplace": (lambda a, b: torch._foreach_mul_([a, b], 3.0), (A, B)),
    "foreach_norm": (lambda a, b: torch._foreach_norm([a, b]), (A, B)),
    "conv2d": (lambda x, w: functional.conv2d(x, w, padding=1), (IMAGE, IMAGE[:, :, :3, :3])),
    "conv_transpose": (lambda x, w: functional.conv_transpose2d(x, w), (IMAGE, torch.ones(3, 2, 3, 3))),
    "conv1d": (lambda x, w: functional.conv1d(x, w), (IMAGE[:, :, 0], torch.ones(4, 3, 3))),
    "max_pool": (lambda x: functional.max_pool2d(x, 2, return_indices=True), (IMAGE,)),
    "adaptive_pool": (lambda x: functional.adaptive_avg_pool2d(x, 3), (IMAGE,)),
    "interpolate": (lambda x: functional.interpolate(x, scale_factor=2.0, mode="bilinear"), (IMAGE,)),
    "layer_norm": (lambda a: functional.layer_norm(a, (4,)), (A,)),
    "group_norm": (lambda x: functional.group_norm(x, 3), (IMAGE,)),
    "gelu": (functional.gelu, (A,)),
    "cross_entropy": (lambda a, i: functional.cross_entropy(a, i), (A, INDEX)),
    "item": (lambda a: a[1, 2].item(), (A,)),
    "tolist": (lambda a: a.tolist(), (A,)),
    "equal": (lambda a, b: torch.equal(a, b), (A, B)),
    "is_set_to": (lambda a: (a.is_set_to(a.view(3, 4)), a.is_set_to(a[:1])), (A,)),
    "empty_tensor": (lambda a: torch.cat([a[:0], a[:0]]).sum(), (A,)),
    "zero_dim": (lambda a: a.sum() * 2, (A,)),
    "histc": (lambda a: torch.histc(a, 4), (A,)),
    "cdist": (lambda a, b: torch.cdist(a, b), (A, B)),
    "logsumexp": (lambda a: a.logsumexp(1), (A,)),
    "quantile": (lambda a: a.quantile(0.3), (A,)),
}


@pytest.mark.parametrize("name", CASES)
def test_same_as_cpu(name: str) -> None:
    function, arguments = CASES[name]
    on_both(function, *arguments)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.int64, torch.bool, torch.complex64])
def test_dtypes_round_trip(dtype: torch.dtype) -> None:
    source = (torch.arange(6) - 2).to(dtype)
    assert torch.equal(source.to("spyre").cpu(), source)


@pytest.mark.filterwarnings("error")
def test_losses_do_not_warn_of_resized_outputs() -> None:
    for loss in (functional.mse_loss, functional.smooth_l1_loss, functional.huber_loss, functional.l1_loss):
        for reduction in ("mean", "sum", "none"):
            on_both(functools.partial(loss, reduction=reduction), A, B)


class TestViews:
    def test_views_share_memory(self) -> None:
        base = torch.zeros(3, 3, device="spyre")
        for view in (
            base.view(9),
            base.t(),
            base[1:],
            base.diagonal(),
            base.unfold(0, 2, 1),
            base.reshape(9, 1),
        ):
            assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
        base.view(9)[4] = 5
        base.diagonal()[0] = 7
        base.unfold(0, 2, 1)[1, 2, 1] = 9
        assert base.cpu().tolist() == [[7, 0, 0], [0, 5, 0], [0, 0, 9]]

    def test_view_of_a_fallback_view_keeps_the_storage_object(self) -> None:
        base = torch.zeros(4, device="spyre", dtype=torch.complex64)
        real = torch.view_as_real(base)
        assert real._is_view()
        assert real._base is base
        assert real.is_set_to(torch.view_as_real(base))
        real.fill_(1)
        assert base[0].item() == 1 + 1j

    def test_in_place_returns_the_same_object(self) -> None:
        tensor = torch.ones(3, device="spyre")
        assert tensor.add_(1) is tensor

    def test_versions_count_in_place_changes(self) -> None:
        tensor = torch.ones(3, device="spyre")
        version = tensor._version
        tensor.mul_(2)
        tensor[0] = 1
        assert tensor._version == version + 2

    def test_partial_overlap_is_rejected(self) -> None:
        tensor = torch.ones(4, device="spyre")
        with pytest.raises(RuntimeError, match="unsupported operation: some elements of the input tensor"):
            tensor[1:].add_(tensor[:-1])


class TestOut:
    def test_keeps_memory_of_fitting_outputs(self) -> None:
        a, out = A.to("spyre"), torch.empty(3, 4, device="spyre")
        address = out.data_ptr()
        assert torch.mul(a, 2, out=out) is out
        assert out.data_ptr() == address
        assert torch.equal(out.cpu(), A * 2)

    def test_resizes_structured(self) -> None:
        a, out = A.to("spyre"), torch.empty(0, device="spyre")
        torch.add(a, a, out=out)
        assert torch.equal(out.cpu(), A + A)

    @pytest.mark.parametrize("rows", [1, 3])
    def test_resizes_unstructured(self, rows: int) -> None:
        out = torch.empty(0, device="spyre", dtype=torch.int64)
        flags = torch.ones(rows, 2, device="spyre")
        before = torch.spyre.memory_allocated()
        assert torch.nonzero(flags, out=out) is out
        assert out.shape == (rows * 2, 2)
        assert torch.equal(out.cpu(), torch.nonzero(flags.cpu()))
        assert torch.spyre.memory_allocated() > before
        assert out.untyped_storage().device.type == "spyre"
        out.add_(1)
        assert torch.equal(out.cpu(), torch.nonzero(flags.cpu()) + 1)

    def test_resized_outputs_of_a_pair(self) -> None:
        values, indices = torch.empty(0, device="spyre"), torch.empty(0, device="spyre", dtype=torch.int64)
        torch.kthvalue(B.to("spyre"), 2, out=(values, indices))
        assert torch.equal(values.cpu(), B.kthvalue(2)[0])
        assert torch.equal(indices.cpu(), B.kthvalue(2)[1])

    def test_memory_of_a_resized_output_is_given_back(self) -> None:
        before = torch.spyre.memory_allocated()
        out = torch.empty(0, device="spyre", dtype=torch.int64)
        torch.nonzero(torch.ones(100, device="spyre"), out=out)
        del out
        assert torch.spyre.memory_allocated() == before

    def test_wrong_device_is_rejected(self) -> None:
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device|on the same device"):
            torch.mm(SQUARE.to("spyre"), SQUARE.to("spyre"), out=torch.empty(3, 3))


class TestResizeAndSet:
    def test_resize_grows_and_keeps_values(self) -> None:
        tensor = torch.arange(3.0, device="spyre")
        tensor.resize_(5)
        assert tensor.shape == (5,)
        assert tensor[:3].tolist() == [0, 1, 2]
        assert tensor.untyped_storage().nbytes() == 20

    def test_resize_storage(self) -> None:
        tensor = torch.arange(3.0, device="spyre")
        before = torch.spyre.memory_allocated()
        tensor.untyped_storage().resize_(4096)
        assert tensor.tolist() == [0, 1, 2]
        assert torch.spyre.memory_allocated() > before
        tensor.untyped_storage().resize_(0)
        assert torch.spyre.memory_allocated() < before

    def test_set_forms(self) -> None:
        source = torch.arange(6.0, device="spyre")
        target = torch.empty(0, device="spyre")
        target.set_(source)
        assert target.data_ptr() == source.data_ptr()
        target.set_(source.untyped_storage(), 1, (2,), (2,))
        assert target.tolist() == [1, 3]
        target.set_(source.untyped_storage())
        assert target.numel() == 6
        target.set_()
        assert target.numel() == 0
        assert target.device == torch.device("spyre:0")
        target.resize_(2).fill_(1)
        assert target.tolist() == [1, 1]

    def test_set_to_cpu_storage_is_rejected(self) -> None:
        with pytest.raises(RuntimeError, match="device"):
            torch.empty(0, device="spyre").set_(torch.ones(2).untyped_storage())


class TestMixedDevices:
    """CPU kernels would compute with any mixture, so each rejection matters."""

    CPU = torch.ones(3, 3)

    @pytest.mark.parametrize(
        "operation",
        [
            lambda s, c: s + c,
            lambda s, c: s @ c,
            lambda s, c: c @ s,
            lambda s, c: torch.cat([s, c]),
            lambda s, c: torch.addmm(s, s, c),
            lambda s, c: s.add_(c),
            lambda s, c: torch.where(s > 0, s, c),
            lambda s, c: functional.linear(s, c),
            lambda s, c: functional.embedding(torch.zeros(2, dtype=torch.long), s),
            lambda s, c: s.index_put_((torch.tensor([0]),), c[:1]),
            lambda s, c: torch._foreach_add([s, c], [c, s]),
            lambda s, c: functional.layer_norm(s, (3,), c[0]),
            lambda s, c: functional.conv2d(s[None, None], c[None, None]),
            lambda s, c: c[torch.tensor([0], device="spyre")],
            lambda s, c: torch.equal(s, c),
            lambda s, c: functional.scaled_dot_product_attention(s[None, None], c[None, None], s[None, None]),
        ],
    )
    def test_rejected(self, operation: Callable[..., object]) -> None:
        with pytest.raises(RuntimeError, match=r"same device|on different devices|indexed tensor"):
            operation(self.CPU.to("spyre"), self.CPU)

    def test_wording(self) -> None:
        with pytest.raises(
            RuntimeError,
            match=r"Expected all tensors to be on the same device, but found at least two devices, spyre:0 and cpu!",
        ):
            torch.mm(self.CPU.to("spyre"), self.CPU)

    def test_scalar_tensors_mix(self) -> None:
        result = self.CPU.to("spyre") * torch.tensor(2.0)
        assert result.device.type == "spyre"
        assert result.sum().item() == 18

    def test_cpu_indices_mix(self) -> None:
        tensor = self.CPU.to("spyre")
        assert tensor[torch.tensor([0, 2])].device.type == "spyre"
        assert tensor[self.CPU > 0].shape == (9,)
        tensor[torch.tensor([0])] = 5
        assert tensor[0].tolist() == [5, 5, 5]

    def test_foreach_compares_element_by_element(self) -> None:
        results = torch._foreach_add([self.CPU.to("spyre"), self.CPU], 1)
        assert [result.device.type for result in results] == ["spyre", "cpu"]

    def test_pack_padded_sequence_takes_cpu_lengths(self) -> None:
        padded = torch.ones(4, 2, 3, device="spyre")
        packed = nn.utils.rnn.pack_padded_sequence(padded, torch.tensor([4, 2]))
        assert packed.data.device.type == "spyre"
        assert nn.utils.rnn.pad_packed_sequence(packed)[0].device.type == "spyre"


class TestUnavailable:
    """What the device does not have says so instead of returning something on the CPU."""

    def test_pinned(self) -> None:
        with pytest.raises(RuntimeError, match="pin"):
            torch.empty(2, device="spyre", pin_memory=True)
        with pytest.raises(RuntimeError, match="pin"):
            A.to("spyre").pin_memory()

    def test_no_cpu_kernel(self) -> None:
        with pytest.raises(NotImplementedError, match="not available on spyre"):
            torch.ops.aten._cudnn_init_dropout_state(0.5, True, 1, dtype=torch.uint8, device="spyre")


DETERMINISTIC: dict[str, Callable[[str], torch.Tensor]] = {
    "empty": lambda device: torch.empty(5, device=device),
    "empty_integers": lambda device: torch.empty(5, dtype=torch.int32, device=device),
    "empty_complex": lambda device: torch.empty(5, dtype=torch.complex64, device=device),
    "empty_strided": lambda device: torch.empty_strided((2, 3), (4, 1), device=device),
    "empty_like": lambda device: torch.empty_like(torch.ones(2, 3, device=device)),
    "new_empty": lambda device: torch.ones(2, device=device).new_empty(7),
    "resize": lambda device: torch.ones(2, device=device).resize_(9),
}


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_algorithms_fill_uninitialised_memory(name: str) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        actual, expected = DETERMINISTIC[name]("spyre"), DETERMINISTIC[name]("cpu")
    finally:
        torch.use_deterministic_algorithms(False)
    assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)


def test_windows() -> None:
    for window in (torch.bartlett_window, torch.blackman_window, torch.hann_window, torch.kaiser_window):
        torch.testing.assert_close(window(7, device="spyre").cpu(), window(7), rtol=0, atol=0)
    actual = torch.kaiser_window(7, False, 5.0, dtype=torch.float64, device="spyre")
    assert actual.is_spyre
    assert torch.equal(actual.cpu(), torch.kaiser_window(7, False, 5.0, dtype=torch.float64))


def test_lazy_clone_is_a_clone() -> None:
    original = torch.ones(3, device="spyre")
    clone = torch._lazy_clone(original)
    clone.add_(1)
    original.mul_(5)
    assert (clone.tolist(), original.tolist()) == ([2, 2, 2], [5, 5, 5])


def test_results_are_in_device_memory() -> None:
    before = torch.spyre.memory_allocated()
    kept = [torch.nonzero(torch.ones(64, device="spyre")), torch.ones(64, device="spyre") + 1]
    assert torch.spyre.memory_allocated() >= before + 64 * 8 + 64 * 4
    del kept
    assert torch.spyre.memory_allocated() == before


def test_no_memory_is_left_behind() -> None:
    before = torch.spyre.memory_stats()["allocation.all.current"]
    for function, arguments in CASES.values():
        on_both(function, *arguments)
    assert torch.spyre.memory_stats()["allocation.all.current"] == before
