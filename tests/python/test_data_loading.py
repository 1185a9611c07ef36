"""`torch.utils.data` with pinned memory, and with workers that are forked or spawned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from conftest import RunScript

DATA = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10))


class TestPinnedMemory:
    def test_pin_memory(self) -> None:
        pinned = torch.arange(5.0).pin_memory()
        assert pinned.is_pinned()
        assert pinned[2:].is_pinned()
        assert pinned.pin_memory() is pinned
        assert not pinned.clone().is_pinned()
        assert not torch.ones(5).is_pinned()
        assert not torch.ones(5, device="spyre").is_pinned()

    def test_making_it(self) -> None:
        for made in (torch.empty(3, pin_memory=True), torch.zeros(3, pin_memory=True), torch.rand(3, pin_memory=True)):
            assert made.is_pinned()
        assert torch.ones(2, requires_grad=True).pin_memory().requires_grad
        assert torch.eye(2).to_sparse().pin_memory().is_pinned()

    def test_copies_in_both_directions(self) -> None:
        pinned = torch.arange(5.0).pin_memory()
        on_device = pinned.to("spyre", non_blocking=True)
        back = torch.empty(5, pin_memory=True)
        back.copy_(on_device, non_blocking=True)
        assert torch.equal(back, pinned)
        assert torch.equal(on_device.to("cpu", non_blocking=True), pinned)

    def test_freed_memory_is_forgotten(self) -> None:
        address_was_pinned = []
        for _ in range(3):
            pinned = torch.ones(1 << 20).pin_memory()
            address_was_pinned.append(pinned.is_pinned())
            del pinned
            address_was_pinned.append(torch.ones(1 << 20).is_pinned())
        assert address_was_pinned == [True, False] * 3

    def test_only_dense_cpu_tensors(self) -> None:
        for pin in (
            lambda: torch.ones(2, device="spyre").pin_memory(),
            lambda: torch.empty(2, device="spyre", pin_memory=True),
        ):
            with pytest.raises(RuntimeError, match="nly dense CPU tensors can be pinned"):
                pin()


@pytest.mark.parametrize("pin", [False, True])
def test_without_workers(pin: bool) -> None:
    total = 0.0
    for inputs, labels in DataLoader(DATA, batch_size=4, shuffle=True, pin_memory=pin):
        assert inputs.is_pinned() is labels.is_pinned() is pin
        total += float(inputs.to("spyre").sum() + labels.to("spyre").sum())
    assert total == 190 + 45


class Records(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"tensor": torch.full((2,), float(index)), "pair": (torch.ones(1), f"name {index}")}


def test_batches_with_structure_are_pinned() -> None:
    batch = next(iter(DataLoader(Records(), 2, pin_memory=True)))
    assert batch["tensor"].is_pinned()
    assert batch["pair"][0].is_pinned()
    assert batch["pair"][1] == ("name 0", "name 1")


@pytest.mark.filterwarnings("ignore:pin_memory_device is deprecated")
def test_named_device_for_pinning() -> None:
    batch = next(iter(DataLoader(DATA, 2, pin_memory=True, pin_memory_device="spyre")))
    assert batch[0].is_pinned()


def test_data_on_the_device() -> None:
    data = TensorDataset(torch.arange(4.0, device="spyre"))
    assert [batch.tolist() for (batch,) in DataLoader(data, 2)] == [[0, 1], [2, 3]]
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        list(DataLoader(data, 2, pin_memory=True))


def test_default_device() -> None:
    torch.set_default_device("spyre")
    try:
        generator = torch.Generator(device="spyre")
        batches = list(DataLoader(torch.arange(6), batch_size=2, shuffle=True, generator=generator))
    finally:
        torch.set_default_device(None)
    assert all(batch.is_spyre for batch in batches)
    assert sorted(torch.cat(batches).tolist()) == list(range(6))


def test_order_is_that_of_the_cpu() -> None:
    def batches() -> list[list[int]]:
        torch.manual_seed(4)
        return [labels.tolist() for _, labels in DataLoader(DATA, 3, shuffle=True)]

    expected = batches()
    torch.rand(5, device="spyre")
    assert batches() == expected


PROGRAM = """
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

class OnTheDevice(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.ones(2, device="spyre")

def main(method):
    warm = torch.ones(2, device="spyre") + 1
    data = TensorDataset(torch.arange(20.0).reshape(10, 2))
    loader = DataLoader(data, 2, num_workers=1, pin_memory=True, persistent_workers=True,
                        multiprocessing_context=method)
    for _ in range(2):
        batches = [batch for batch, in loader]
        assert all(batch.is_pinned() for batch in batches)
        assert sum(float(batch.to("spyre", non_blocking=True).sum()) for batch in batches) == 190.0
    del loader
    expected = {"fork": "you must use the 'spawn' start method", "spawn": "Send tensor.cpu() instead"}[method]
    try:
        list(DataLoader(OnTheDevice(), 2, num_workers=1, multiprocessing_context=method))
    except RuntimeError as error:
        assert expected in str(error), error
    else:
        raise SystemExit("device tensors came from a worker")
    assert (warm + 1).sum().item() == 6
    # The error of a queue's sending thread reaches whoever reads the queue.
    queue = torch.multiprocessing.get_context(method).Queue()
    queue.put(warm)
    try:
        queue.get(timeout=60)
    except RuntimeError as error:
        assert "Cannot send a tensor on spyre:0" in str(error), error
    else:
        raise SystemExit("a device tensor went through a queue")

if __name__ == "__main__":
    import sys
    main(sys.argv[1])
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(method: str, run_script: RunScript, tmp_path: Path) -> None:
    """They load; the device is the main process's. One that makes device tensors fails there with what to do."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run_script(
        f"import runpy, sys\nsys.argv = [{str(program)!r}, {method!r}]\n"
        f"runpy.run_path({str(program)!r}, run_name='__main__')"
    ).check()
