"""Saving, loading, copying and pickling tensors and modules."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn


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
    message = r"on SPYRE device 7 but torch.spyre.device_count\(\) is 1. Please use torch.load with map_location"
    with pytest.raises(RuntimeError, match=message):
        torch.load(saved(torch.ones(2)), map_location="spyre:7")


@pytest.mark.parametrize("weights_only", [False, True])
def test_types_and_parameters(weights_only: bool) -> None:
    values = {
        "parameter": nn.Parameter(torch.ones(2, device="spyre")),
        "half": torch.ones(2, dtype=torch.bfloat16, device="spyre"),
        "conjugate": torch.tensor([1 + 2j], device="spyre").conj(),
        "empty": torch.empty(0, 3, device="spyre"),
    }
    loaded = torch.load(saved(values), weights_only=weights_only)
    assert isinstance(loaded["parameter"], nn.Parameter)
    assert loaded["conjugate"].is_conj()
    for name, value in values.items():
        assert loaded[name].is_spyre
        assert (loaded[name].dtype, loaded[name].shape) == (value.dtype, value.shape)
        assert loaded[name].tolist() == value.tolist()


def test_other_ways_to_load(tmp_path: Path) -> None:
    file, tensor = tmp_path / "tensor.pt", torch.arange(4.0, device="spyre")
    torch.save(tensor, file)
    assert torch.load(file, map_location=lambda storage, location: storage).device.type == "cpu"
    assert torch.load(file, map_location=lambda storage, location: storage.spyre()).is_spyre
    assert torch.load(file, map_location="meta").is_meta
    for location in (None, "spyre", "cpu"):
        assert torch.load(file, mmap=True, map_location=location).tolist() == tensor.tolist()
    torch.save(tensor, file, _use_new_zipfile_serialization=False)
    assert torch.load(file).is_spyre


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
