"""Saving, loading, copying and sending tensors, and pieces of data loading."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from conftest import RunScript


def saved(value: object) -> io.BytesIO:
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    return stream


@pytest.mark.parametrize("location", [None, "spyre", "spyre:0", torch.device("spyre"), "cpu", {"spyre:0": "cpu"}])
def test_save_and_load(location: Any) -> None:
    tensor = torch.arange(6.0, device="spyre").reshape(2, 3).t()
    loaded = torch.load(saved(tensor), map_location=location)
    on_cpu = location == "cpu" or isinstance(location, dict)
    assert loaded.device.type == ("cpu" if on_cpu else "spyre")
    assert loaded.stride() == tensor.stride()
    assert torch.equal(loaded.cpu(), tensor.cpu())


def test_cpu_checkpoint_onto_the_device() -> None:
    loaded = torch.load(saved({"w": torch.ones(3)}), map_location="spyre")
    assert loaded["w"].is_spyre


def test_load_of_a_missing_device() -> None:
    with pytest.raises(RuntimeError, match="spyre|device"):
        torch.load(saved(torch.ones(2)), map_location="spyre:7")


def test_shared_storage_stays_shared() -> None:
    base = torch.zeros(4, device="spyre")
    first, second = torch.load(saved([base, base[2:]]))
    second.fill_(1)
    assert first.tolist() == [0, 0, 1, 1]


def test_module_state(tmp_path: Path) -> None:
    model, other = nn.Linear(3, 2).to("spyre"), nn.Linear(3, 2)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other.load_state_dict(torch.load(tmp_path / "model.pt", map_location="cpu"))
    assert torch.equal(other.weight, model.weight.cpu())


def test_deepcopy_and_pickle() -> None:
    tensor = torch.arange(4.0, device="spyre", requires_grad=True)
    for made in (copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor))):
        assert made.is_spyre
        assert made.requires_grad
        assert made.data_ptr() != tensor.data_ptr()
        assert torch.equal(made.detach().cpu(), tensor.detach().cpu())
    model = copy.deepcopy(nn.Linear(2, 2).to("spyre"))
    assert model.weight.is_spyre
    assert isinstance(copy.deepcopy(nn.Parameter(tensor.detach())), nn.Parameter)


def test_numpy_needs_the_cpu() -> None:
    tensor = torch.ones(2, device="spyre")
    with pytest.raises(TypeError, match="can't convert spyre:0 device type tensor to numpy"):
        tensor.numpy()
    assert tensor.cpu().numpy().tolist() == [1, 1]


def test_repr() -> None:
    assert repr(torch.ones(2, device="spyre")) == "tensor([1., 1.], device='spyre:0')"


class TestPinned:
    def test_pin_memory(self) -> None:
        pinned = torch.arange(5.0).pin_memory()
        assert pinned.is_pinned()
        assert pinned[2:].is_pinned()
        assert not torch.ones(5).is_pinned()
        assert not torch.ones(5, device="spyre").is_pinned()
        assert torch.equal(pinned.to("spyre", non_blocking=True).cpu(), torch.arange(5.0))
        assert torch.empty(3, pin_memory=True).is_pinned()

    def test_freed_memory_is_forgotten(self) -> None:
        address_was_pinned = []
        for _ in range(3):
            pinned = torch.ones(1 << 20).pin_memory()
            address_was_pinned.append(pinned.is_pinned())
            del pinned
            address_was_pinned.append(torch.ones(1 << 20).is_pinned())
        assert address_was_pinned == [True, False] * 3


@pytest.mark.parametrize("pin", [False, True])
def test_data_loader(pin: bool) -> None:
    data = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10))
    total = 0.0
    for inputs, labels in DataLoader(data, batch_size=4, shuffle=True, pin_memory=pin):
        assert inputs.is_pinned() is pin
        total += float(inputs.to("spyre").sum() + labels.to("spyre").sum())
    assert total == 190 + 45


def test_data_loader_with_forked_workers(run_script: RunScript) -> None:
    out = run_script(
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        warm = torch.ones(2, device="spyre") + 1
        data = TensorDataset(torch.arange(20.0).reshape(10, 2))
        loader = DataLoader(data, 2, num_workers=2, pin_memory=True, multiprocessing_context="fork")
        print(sum(float(batch.to("spyre").sum()) for batch, in loader))
        """
    ).check()
    assert "190.0" in out


def test_sending_to_a_process_is_rejected() -> None:
    from multiprocessing.reduction import ForkingPickler

    with pytest.raises(RuntimeError, match="PrivateUse1|spyre|_share"):
        ForkingPickler.dumps(torch.ones(2, device="spyre"))
