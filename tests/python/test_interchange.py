"""Tensors that go elsewhere and come back: DLPack, NumPy, safetensors, other processes."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import dlpack

from conftest import RunScript

NO_WHEEL = "not among this environment's packages"

A = torch.arange(6.0).reshape(2, 3)


class TestDLPack:
    def test_device(self) -> None:
        assert A.to("spyre").__dlpack_device__() == (dlpack.DLDeviceType.kDLExtDev, 0)
        assert A.__dlpack_device__() == (dlpack.DLDeviceType.kDLCPU, 0)
        assert nn.Parameter(A.to("spyre")).__dlpack_device__()[0] == dlpack.DLDeviceType.kDLExtDev

    @pytest.mark.parametrize(
        "exchanged",
        [torch.from_dlpack, lambda tensor: dlpack.from_dlpack(dlpack.to_dlpack(tensor))],
        ids=["protocol", "capsule"],
    )
    def test_shares_memory(self, exchanged: Callable[[torch.Tensor], torch.Tensor]) -> None:
        gc.collect()
        tensor = A.to("spyre").t()
        shared = exchanged(tensor)
        assert (shared.device, shared.stride(), shared.data_ptr()) == (tensor.device, (1, 3), tensor.data_ptr())
        shared.add_(1)
        assert torch.equal(tensor.cpu(), A.t() + 1)
        before = torch.spyre.memory_allocated()
        del tensor
        gc.collect()
        assert torch.spyre.memory_allocated() == before
        assert torch.equal(shared.cpu(), A.t() + 1)
        del shared
        assert torch.spyre.memory_allocated() < before

    @pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
    def test_types(self, dtype: torch.dtype) -> None:
        tensor = A.to("spyre", dtype)
        assert torch.equal(torch.from_dlpack(tensor), tensor)

    def test_between_devices(self) -> None:
        tensor = A.to("spyre")
        assert torch.equal(torch.from_dlpack(tensor, device="cpu"), A)
        for source in (A, A.numpy()):
            made = torch.from_dlpack(source, device="spyre")
            assert made.is_spyre
            assert torch.equal(made.cpu(), A)
        assert torch.from_dlpack(tensor, copy=True).data_ptr() != tensor.data_ptr()
        with pytest.raises(ValueError, match="cannot move"):
            torch.from_dlpack(tensor, device="cpu", copy=False)

    def test_numpy_takes_host_memory_only(self) -> None:
        with pytest.raises((RuntimeError, BufferError), match="Unsupported device"):
            np.from_dlpack(A.to("spyre"))
        assert np.from_dlpack(A.pin_memory()).tolist() == A.tolist()

    def test_what_cannot_be_exported(self) -> None:
        with pytest.raises(BufferError, match="Can't export tensors that require gradient"):
            A.to("spyre").requires_grad_().__dlpack__()
        with pytest.raises(BufferError, match="Can't export tensors with the conjugate bit set"):
            torch.ones(2, dtype=torch.complex64, device="spyre").conj().__dlpack__()
        with pytest.raises(TypeError, match="stream must be"):
            A.to("spyre").__dlpack__(stream="0")

    def test_shared_memory_cannot_be_resized(self) -> None:
        shared = torch.from_dlpack(A.to("spyre"))
        with pytest.raises(RuntimeError, match="Trying to resize storage that is not resizable"):
            shared.resize_(100)
        assert shared.tolist() == A.tolist()

    def test_subclasses(self) -> None:
        class Sub(torch.Tensor):
            pass

        tensor = A.to("spyre").as_subclass(Sub)
        assert tensor.__dlpack_device__()[0] == dlpack.DLDeviceType.kDLExtDev
        assert torch.from_dlpack(tensor).data_ptr() == tensor.data_ptr()

    @pytest.mark.skipif(not hasattr(dlpack, "ReadOnlyTensorWrapper"), reason="PyTorch before 2.14 has no such class")
    def test_read_only_export(self) -> None:
        for tensor in (A, A.to("spyre")):
            wrapped = dlpack.ReadOnlyTensorWrapper(tensor)
            assert wrapped.__dlpack_device__() == tensor.__dlpack_device__()
            assert "dltensor" in repr(wrapped.__dlpack__())
            with pytest.raises(RuntimeError, match="only supports DLPack export"):
                wrapped + 1


class TestNumPy:
    @pytest.mark.parametrize(
        "convert",
        [torch.Tensor.numpy, torch.Tensor.__array__, np.asarray, np.sin, np.stack],
    )
    def test_needs_a_copy_on_the_cpu(self, convert: Callable[[torch.Tensor], object]) -> None:
        message = (
            "can't convert spyre:0 device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )
        with pytest.raises(TypeError, match=re.escape(message)):
            convert(A.to("spyre"))

    def test_copies(self) -> None:
        tensor = A.to("spyre").requires_grad_()
        assert tensor.numpy(force=True).tolist() == tensor.detach().cpu().numpy().tolist() == A.tolist()
        assert torch.as_tensor(A.numpy(), device="spyre").tolist() == A.tolist()
        assert (tensor.detach() + np.float32(1)).is_spyre
        assert tensor.detach()[np.array([1])].tolist() == [[3, 4, 5]]

    def test_there_is_no_buffer_and_no_cuda(self) -> None:
        with pytest.raises(TypeError, match="bytes-like object is required"):
            memoryview(A.to("spyre"))
        with pytest.raises(AttributeError, match="on non-CUDA tensor type: torch.spyre.FloatTensor"):
            _ = A.to("spyre").__cuda_array_interface__


class TestSafetensors:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        safetensors = pytest.importorskip("safetensors.torch", reason=NO_WHEEL)
        tensors = {"a": A.to("spyre"), "b": torch.ones(3, dtype=torch.bfloat16, device="spyre"), "c": A[:0].to("spyre")}
        safetensors.save_file(tensors, tmp_path / "file.safetensors", metadata={"made": "here"})
        return tmp_path / "file.safetensors"

    @pytest.mark.parametrize("device", ["spyre", "spyre:0", torch.device("spyre"), 0, "cpu"])
    def test_load_file(self, file: Path, device: Any) -> None:
        safetensors = pytest.importorskip("safetensors.torch", reason=NO_WHEEL)
        loaded = safetensors.load_file(file, device=device)
        expected = "cpu" if device == "cpu" else "spyre"
        assert {name: tensor.device.type for name, tensor in loaded.items()} == dict.fromkeys("abc", expected)
        assert torch.equal(loaded["a"].cpu(), A)
        assert (loaded["b"].dtype, loaded["c"].shape) == (torch.bfloat16, (0, 3))

    def test_open(self, file: Path) -> None:
        package = pytest.importorskip("safetensors", reason=NO_WHEEL)
        with package.safe_open(file, framework="pt", device="spyre") as opened:
            assert isinstance(opened, package.safe_open)
            assert sorted(opened.keys()) == ["a", "b", "c"]
            assert opened.metadata() == {"made": "here"}
            assert opened.get_tensor("a").is_spyre
            assert opened.get_slice("a")[1:, :2].tolist() == [[3, 4]]

    def test_bytes_and_models(self, tmp_path: Path) -> None:
        safetensors = pytest.importorskip("safetensors.torch", reason=NO_WHEEL)
        assert torch.equal(safetensors.load(safetensors.save({"a": A.to("spyre")}))["a"], A)
        model, other = nn.Linear(2, 2).to("spyre"), nn.Linear(2, 2).to("spyre")
        safetensors.save_model(model, str(tmp_path / "model.safetensors"))
        safetensors.load_model(other, str(tmp_path / "model.safetensors"), device="spyre")
        assert torch.equal(other.weight, model.weight)

    def test_device_that_is_not_there(self, file: Path) -> None:
        safetensors = pytest.importorskip("safetensors.torch", reason=NO_WHEEL)
        with pytest.raises(RuntimeError, match="invalid device ordinal: got device index 4"):
            safetensors.load_file(file, device="spyre:4")

    @pytest.mark.parametrize(
        "imports",
        [
            "import torch; from safetensors.torch import load_file",
            "from safetensors import safe_open; import torch; from safetensors.torch import load_file",
            "import safetensors.torch; load_file = safetensors.torch.load_file",
        ],
    )
    def test_whatever_is_imported_first(self, file: Path, run_script: RunScript, imports: str) -> None:
        run_script(f"{imports}\nassert load_file({str(file)!r}, device='spyre')['a'].is_spyre").check()


class TestOtherProcesses:
    @pytest.mark.parametrize(
        "made",
        [
            lambda: A.to("spyre"),
            lambda: A.to("spyre")[1:],
            lambda: nn.Linear(2, 2).to("spyre"),
            lambda: nn.Parameter(A.to("spyre")),
            lambda: A.to("spyre").untyped_storage(),
            lambda: {"key": [A.to("spyre")]},
        ],
    )
    def test_sending_is_rejected(self, made: Callable[[], object]) -> None:
        message = (
            "Cannot send a tensor on spyre:0 to another process: its memory belongs to this one. "
            "Send tensor.cpu() instead"
        )
        with pytest.raises(RuntimeError, match=re.escape(message)):
            ForkingPickler.dumps(made())

    def test_the_copy_may_be_sent(self) -> None:
        assert len(ForkingPickler.dumps(A.to("spyre").cpu())) > 0

    def test_sharing_does_nothing(self) -> None:
        """As with CUDA: only CPU memory moves to where others see it."""
        model = nn.Linear(2, 2).to("spyre")
        address = model.weight.data_ptr()
        model.share_memory()
        assert model.weight.share_memory_().data_ptr() == address

    def test_spawned_processes(self, run_script: RunScript, tmp_path: Path) -> None:
        """They have devices of their own; a tensor as an argument is rejected where the process is started."""
        program = tmp_path / "program.py"
        program.write_text(
            """
import torch, torch.multiprocessing as mp

def work(index, given, results):
    results.put((given.to("spyre") * (index + 1)).sum().item())

if __name__ == "__main__":
    warm = torch.ones(2, device="spyre")
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(work, args=(torch.ones(3), queue), nprocs=2)
    assert sorted(queue.get() for _ in range(2)) == [3.0, 6.0]
    try:
        mp.spawn(work, args=(warm, queue), nprocs=1)
    except RuntimeError as error:
        assert "Cannot send a tensor on spyre:0" in str(error), error
    else:
        raise SystemExit("the tensor was sent")
"""
        )
        run_script(f"import runpy\nrunpy.run_path({str(program)!r}, run_name='__main__')").check()
