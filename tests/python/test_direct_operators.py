"""Operators that run without boxing, and the aliases that threads use again and again."""

from __future__ import annotations

import threading

import pytest
import torch

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.complex64]


def both(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return values, values.to("spyre")


@pytest.mark.parametrize("name", ["add.out", "add_.Tensor", "mm.out", "sum.IntList_out", "_softmax.out", "zero_"])
def test_an_operator_has_a_kernel_of_its_own(name: str) -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "PrivateUse1")


def test_aliases_are_used_again_with_other_types_shapes_and_bits() -> None:
    generator = torch.Generator().manual_seed(3)
    for round in range(40):
        dtype = DTYPES[round % len(DTYPES)]
        sizes = [(), (3,), (2, 5), (4, 1, 3), (0, 2)][round % 5]
        cpu, device = both((torch.rand(sizes, generator=generator) * 9).to(dtype))
        if round % 3 == 0:
            cpu, device = cpu.conj(), device.conj()
        for function in (lambda a: a + a, lambda a: a * 2, lambda a: a - a[:1] if a.dim() else a):
            expected, result = function(cpu), function(device)
            assert result.device.type == "spyre"
            assert result.dtype == expected.dtype
            assert result.stride() == expected.stride()
            torch.testing.assert_close(result.cpu(), expected.resolve_conj(), rtol=0, atol=0)


def test_a_number_after_a_tensor_without_dimensions() -> None:
    # The alias of a number says so; used again for a tensor it must not, or types are promoted wrongly.
    half = torch.ones(3, dtype=torch.float16, device="spyre")
    scalar = torch.ones((), dtype=torch.float64, device="spyre")
    assert (half + 1.5).dtype == torch.float16
    assert (scalar + torch.ones((), dtype=torch.float16, device="spyre")).dtype == torch.float64
    assert (half.long() + scalar).dtype == torch.float64


def test_idle_aliases_hold_no_device_memory() -> None:
    before = torch.spyre.memory_allocated()
    for _ in range(3):
        left, right = torch.ones(1 << 18, device="spyre"), torch.ones(1 << 18, device="spyre")
        left += right
        left.mul_(right).sub_(right, alpha=2)
        assert torch.spyre.memory_allocated() == before + 2 * (1 << 20)
        del left, right
        assert torch.spyre.memory_allocated() == before


def test_a_kernel_that_raises() -> None:
    before = torch.spyre.memory_allocated()
    for _ in range(12):
        matrix, vector = torch.ones(4, 5, device="spyre"), torch.ones(3, device="spyre")
        with pytest.raises(RuntimeError, match="must match the size of tensor"):
            matrix.add_(vector)
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.ones(3, dtype=torch.int64, device="spyre").add_(vector)
        del matrix, vector
        assert torch.spyre.memory_allocated() == before
    assert (torch.ones(2, device="spyre") + 1).tolist() == [2.0, 2.0]


def test_an_output_is_given_memory_of_the_device() -> None:
    out = torch.empty(0, device="spyre")
    ones = torch.ones(16, 16, device="spyre")
    address = torch.add(ones, ones, out=out).data_ptr()
    assert out.data_ptr() == address
    assert torch.spyre.memory_allocated() >= out.untyped_storage().nbytes() == 1024
    assert torch.add(ones, 2, out=out).data_ptr() == address
    assert out.sum().item() == 3 * 256


def test_the_same_and_overlapping_arguments() -> None:
    base = torch.arange(6.0, device="spyre")
    base.mul_(base)
    assert base.tolist() == [0, 1, 4, 9, 16, 25]
    with pytest.raises(RuntimeError, match="refers to a single memory location"):
        base[:1].expand(3).add_(1)
    with pytest.raises(RuntimeError, match="partial overlap|refer to the same memory|some elements of the input"):
        base[1:].add_(base[:-1])


def test_devices_are_compared() -> None:
    device, cpu = torch.ones(2, 2, device="spyre"), torch.ones(2, 2)
    for call in (
        lambda: torch.add(device, cpu),
        lambda: torch.mm(device, cpu),
        lambda: torch.add(device, device, out=cpu),
        lambda: device.mul_(cpu),
    ):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            call()
    assert (device + torch.tensor(2.0)).sum().item() == 12


def test_inference_mode_before_and_after() -> None:
    weight = torch.ones(3, device="spyre", requires_grad=True)
    with torch.inference_mode():
        for _ in range(10):
            kept = weight * 2
            kept.add_(1)
    assert kept.is_inference()
    (weight * 3).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0, 3.0, 3.0]


def test_each_thread_has_its_own() -> None:
    results = []

    def work(value: int) -> None:
        tensor = torch.full((8,), float(value), device="spyre")
        for _ in range(200):
            tensor = tensor + 1
        results.append(tensor.sum().item())

    threads = [threading.Thread(target=work, args=(value,)) for value in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == [8.0 * (value + 200) for value in range(6)]
