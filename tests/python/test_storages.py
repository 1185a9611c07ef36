"""Storages on the device, tensors made from others, and how tensors are shown."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")

A = torch.arange(6.0).reshape(2, 3)


class TestStorages:
    def test_addresses_and_sizes(self) -> None:
        tensor = A.to("spyre")
        storage = tensor.untyped_storage()
        assert storage.data_ptr() == tensor.data_ptr() == tensor[1:].untyped_storage().data_ptr()
        assert tensor[1:].data_ptr() - tensor.data_ptr() == 12
        assert (storage.nbytes(), len(storage), storage.device) == (24, 24, torch.device("spyre", 0))
        assert storage.is_spyre
        assert not storage.is_cuda
        assert storage.get_device() == 0

    def test_resizing_gives_memory_back(self) -> None:
        before = torch.spyre.memory_allocated()
        tensor = torch.ones(1 << 20, dtype=torch.uint8, device="spyre")
        storage = tensor.untyped_storage()
        storage.resize_(2 << 20)
        assert torch.spyre.memory_allocated() - before == 2 << 20
        assert tensor.sum().item() == 1 << 20
        storage.resize_(0)
        assert torch.spyre.memory_allocated() == before
        assert (storage.nbytes(), storage.data_ptr()) == (0, 0)
        assert storage.device == torch.device("spyre", 0)
        storage.resize_(1 << 20)
        tensor.fill_(3)
        assert tensor.sum().item() == 3 << 20

    def test_a_tensor_without_memory_can_be_set(self) -> None:
        tensor = torch.ones(4, device="spyre")
        tensor.untyped_storage().resize_(0)
        tensor.set_(torch.arange(3.0, device="spyre"))
        assert tensor.tolist() == [0, 1, 2]

    def test_resizing_beyond_the_device(self) -> None:
        storage = torch.ones(4, device="spyre").untyped_storage()
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 1.00 GiB"):
            storage.resize_(1 << 30)
        assert storage.nbytes() == 16

    @pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
    def test_failed_resize_leaves_the_tensor(self, format: torch.memory_format) -> None:
        tensor = torch.ones(1, 2, 2, 1, device="spyre").transpose(1, 2)
        with pytest.raises(torch.OutOfMemoryError):
            tensor.resize_(1, 1 << 10, 1 << 10, 1 << 10, memory_format=format)
        assert (tensor.shape, tensor.stride()) == ((1, 2, 2, 1), (4, 1, 2, 1))
        with pytest.raises(torch.OutOfMemoryError):
            torch.mul(torch.ones(5 << 20, 1, device="spyre"), torch.ones(1, 8, device="spyre"), out=tensor[0, 0])
        assert tensor.sum().item() == 4

    def test_contents(self) -> None:
        storage = torch.UntypedStorage(4, device="spyre")
        storage.copy_(torch.UntypedStorage([1, 2, 3, 4]))
        storage[0] = 9
        assert (storage.tolist(), storage[3], storage.cpu().tolist()) == ([9, 2, 3, 4], 4, [9, 2, 3, 4])
        assert storage.clone().fill_(0).tolist() == [0, 0, 0, 0]
        assert "device=spyre:0" in repr(storage)

    def test_copies(self) -> None:
        host = torch.UntypedStorage([1, 2, 3])
        for made in (host.spyre(), host.to(device="spyre"), host.to(device="spyre:0"), copy.deepcopy(host.spyre())):
            assert made.is_spyre
            assert made.tolist() == [1, 2, 3]
        typed = A.to("spyre").storage()
        assert (typed.device.type, typed.spyre().is_spyre, typed[1], typed.cpu()[1]) == ("spyre", True, 1.0, 1.0)
        assert pickle.loads(pickle.dumps(typed)).device.type == "spyre"

    def test_only_host_memory_is_pinned(self) -> None:
        with pytest.raises(TypeError, match="only CPU memory can be pinned"):
            torch.ones(4, device="spyre").untyped_storage().pin_memory()

    @pytest.mark.skipif(
        inspect.signature(torch.UntypedStorage.is_pinned).parameters["device"].default == "cuda",
        reason="storages of PyTorch before 2.13 are pinned for CUDA unless told otherwise, which is deprecated",
    )
    def test_pinned_storages(self) -> None:
        storage = torch.ones(4).untyped_storage()
        assert storage.pin_memory().is_pinned()
        assert not storage.is_pinned()
        assert not storage.spyre().is_pinned()

    def test_taking_over(self) -> None:
        tensor, other = torch.ones(4, device="spyre"), torch.empty(0, device="spyre")
        other.set_(tensor.untyped_storage(), 1, (3,), (1,))
        other.zero_()
        assert tensor.tolist() == [1, 0, 0, 0]
        with pytest.raises(RuntimeError, match='on device "spyre:0" to a storage on different device "cpu"'):
            other.set_(torch.ones(2).untyped_storage())

    def test_swapping(self) -> None:
        here, there = torch.ones(2, device="spyre"), torch.zeros(3)
        torch.utils.swap_tensors(here, there)
        assert (here.device.type, there.device.type, there.tolist()) == ("cpu", "spyre", [1, 1])


class TestMadeFromOthers:
    def test_new(self) -> None:
        tensor = A.to("spyre", torch.double)
        made = [
            tensor.new_zeros(2),
            tensor.new_ones(2),
            tensor.new_empty(2),
            tensor.new_full((2,), 3),
            tensor.new_tensor([1, 2], dtype=torch.double),
            tensor.new_empty_strided((2,), (3,)),
            tensor.new(2),
            torch.ones(2, dtype=torch.half).type_as(tensor),
            torch.ones(2).type("torch.spyre.DoubleTensor"),
        ]
        assert {(each.device, each.dtype) for each in made} == {(torch.device("spyre", 0), torch.double)}
        assert tensor.new_full((2,), 3).tolist() == [3, 3]
        assert tensor.type() == "torch.spyre.DoubleTensor"

    def test_from_values(self) -> None:
        tensor = A.to("spyre")
        assert torch.as_tensor([1, 2], device="spyre").tolist() == [1, 2]
        assert torch.asarray(tensor).data_ptr() == tensor.data_ptr()
        assert torch.tensor([tensor[0, 1], tensor[1, 2]], device="spyre").tolist() == [1, 5]
        assert torch.tensor([tensor[0, 1]]).device.type == "cpu"
        assert torch.scalar_tensor(2, device="spyre").item() == 2
        assert torch.empty_permuted((2, 3), (1, 0), device="spyre").stride() == (1, 2)

    def test_what_to_copies(self) -> None:
        tensor = torch.ones(1, 2, 3, 4, device="spyre")
        assert tensor.to("spyre") is tensor
        assert tensor.to("spyre:0") is tensor
        assert tensor.to("spyre", copy=True) is not tensor
        assert tensor.to("spyre", memory_format=torch.channels_last).stride() == (24, 1, 8, 2)
        assert tensor.to(torch.ones(1, dtype=torch.half)).device.type == "cpu"

    def test_python_values(self) -> None:
        tensor = torch.tensor([1, 2], device="spyre")
        assert [each.item() for each in tensor] == tensor.tolist() == [1, 2]
        assert (len(tensor), 2 in tensor, 3 in tensor) == (2, True, False)
        assert (int(tensor[0]), float(tensor[1]), bool(tensor[0]), range(5)[tensor[1]]) == (1, 2.0, True, 2)
        with pytest.raises(RuntimeError, match="Boolean value of Tensor with more than one value is ambiguous"):
            bool(tensor)

    def test_default_device(self) -> None:
        torch.set_default_device("spyre")
        try:
            assert torch.get_default_device() == torch.device("spyre", 0)
            made = [torch.eye(2), torch.randint(3, (2,)), torch.hann_window(3), torch.linspace(0, 1, 3)]
            assert {each.device.type for each in made} == {"spyre"}
            assert repr(torch.ones(1)) == "tensor([1.], device='spyre:0')"
            with torch.device("cpu"):
                assert torch.ones(1).device.type == "cpu"
        finally:
            torch.set_default_device(None)
        torch.set_default_device("spyre:3")
        try:
            with pytest.raises(RuntimeError, match="invalid device ordinal"):
                torch.ones(1)
        finally:
            torch.set_default_device(None)

    @pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
    def test_legacy_types_do_not_exist(self) -> None:
        with pytest.raises(AttributeError, match="FloatTensor"):
            torch.set_default_tensor_type("torch.spyre.FloatTensor")


@pytest.mark.parametrize(
    ("tensor", "shown"),
    [
        (torch.ones(2, dtype=torch.half), "tensor([1., 1.], device='spyre:0', dtype=torch.float16)"),
        (torch.ones(2, dtype=torch.bfloat16), "tensor([1., 1.], device='spyre:0', dtype=torch.bfloat16)"),
        (torch.tensor([True]), "tensor([True], device='spyre:0')"),
        (torch.tensor(1 + 2j), "tensor(1.+2.j, device='spyre:0')"),
        (torch.tensor(3), "tensor(3, device='spyre:0')"),
        (torch.empty(0), "tensor([], device='spyre:0')"),
        (torch.tensor([1.0]).requires_grad_(), "tensor([1.], device='spyre:0', requires_grad=True)"),
    ],
)
def test_repr(tensor: torch.Tensor, shown: str) -> None:
    assert repr(tensor.detach().to("spyre").requires_grad_(tensor.requires_grad)) == shown


def test_repr_of_more() -> None:
    tensor = torch.ones(2, device="spyre", requires_grad=True)
    assert "grad_fn=<MulBackward0>" in repr(tensor * 2)
    assert repr(torch.nn.Parameter(tensor.detach())).startswith(
        "Parameter containing:\ntensor([1., 1.], device='spyre:0'"
    )
    assert "..." in repr(torch.ones(2000, device="spyre"))
    assert f"{tensor.detach()[0]:.3f}" == "1.000"
