"""`torch.spyre`: the devices, and what torch asks of any accelerator."""

from __future__ import annotations

import pytest
import torch

from conftest import RunScript


def test_is_there() -> None:
    assert torch.spyre.is_available()
    assert torch.spyre.is_initialized()
    assert torch.spyre.device_count() == 1
    assert torch.spyre.current_device() == 0
    assert torch.accelerator.current_accelerator() == torch.device("spyre")
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 1
    assert torch.get_device_module("spyre") is torch.spyre


def test_submodule_is_importable() -> None:
    import torch.spyre.memory as imported

    assert imported is torch.spyre.memory


def test_tensor_and_module_methods() -> None:
    tensor = torch.ones(2).spyre()
    assert tensor.is_spyre
    assert tensor.device == torch.device("spyre:0")
    assert torch.nn.Linear(2, 2).spyre().weight.is_spyre
    assert tensor.untyped_storage().is_spyre


def test_properties() -> None:
    properties = torch.spyre.get_device_properties()
    free, total = torch.spyre.mem_get_info()
    assert properties.total_memory == total
    assert 0 < free <= total
    assert properties.name == torch.spyre.get_device_name("spyre:0")
    assert (properties.major, properties.minor) == torch.spyre.get_device_capability(0) == (1, 0)
    assert properties.regions >= 1
    assert torch.accelerator.get_memory_info() == (free, total)


@pytest.mark.parametrize("index", [1, 5, 127])
def test_invalid_index(index: int) -> None:
    uses = [
        lambda: torch.empty(2, device=f"spyre:{index}"),
        lambda: torch.empty(0, device=f"spyre:{index}"),
        lambda: torch.ones(2).to(f"spyre:{index}"),
        lambda: torch.empty_strided((2,), (1,), device=f"spyre:{index}"),
        lambda: torch.spyre.set_device(index),
        lambda: torch.accelerator.set_device_index(index),
        lambda: torch.spyre.memory_stats(index),
        lambda: torch.spyre.synchronize(index),
        lambda: torch.spyre.get_rng_state(index),
        lambda: torch.Generator(device=f"spyre:{index}"),
        lambda: torch.spyre.Stream(index),
        lambda: torch.spyre.device(index).__enter__(),
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match=f"invalid device ordinal: got device index {index}, but the number of"):
            use()
    assert torch.spyre.current_device() == 0


def test_index_that_does_not_fit_torchs_type() -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal: got device index 256"):
        torch.spyre.set_device(256)


def test_other_device_types_are_rejected() -> None:
    for use in (torch.spyre.set_device, torch.spyre.memory_stats, torch.spyre.synchronize):
        with pytest.raises(ValueError, match="Expected a spyre device, but got: cpu"):
            use("cpu")
    with pytest.raises(ValueError, match="specified index"):
        torch.spyre.set_device("spyre")


def test_set_device_ignores_negative_indices() -> None:
    torch.spyre.set_device(-1)
    with torch.spyre.device(-1), torch.spyre.device(None), torch.spyre.device_of(torch.ones(1)):
        assert torch.spyre.current_device() == 0


def test_set_default_device() -> None:
    torch.set_default_device("spyre")
    try:
        tensor = torch.ones(3)
        assert tensor.is_spyre
        assert torch.nn.Linear(2, 2).weight.is_spyre
        assert torch.arange(3).is_spyre
        assert torch.tensor([1, 2]).is_spyre
        assert torch.randperm(4).is_spyre
    finally:
        torch.set_default_device(None)
    assert torch.ones(3).device.type == "cpu"
    with torch.device("spyre"):
        assert torch.zeros(1).is_spyre


def test_forked_child_is_told_to_spawn(run_script: RunScript) -> None:
    out = run_script(
        """
        import os, torch
        kept = torch.ones(4, device="spyre")
        pid = os.fork()
        if pid == 0:
            torch.manual_seed(1)            # must work: DataLoader workers do it
            assert torch.ones(3).sum() == 3
            for use in (lambda: torch.ones(2, device="spyre"), lambda: torch.spyre.synchronize(),
                        lambda: torch.ones(2).to("spyre"), lambda: kept + 1):
                try:
                    use()
                except RuntimeError as error:
                    assert "spawn" in str(error), error
                else:
                    os._exit(2)
            assert torch.spyre._is_in_bad_fork() and not torch.spyre.is_initialized()
            del kept
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert (kept + 1).sum().item() == 8
        print("parent goes on")
        """
    ).check()
    assert "parent goes on" in out


class TestAccelerator:
    """`torch.accelerator`, which programs use that do not name their device."""

    def test_devices(self) -> None:
        assert torch.accelerator.current_device_index() == 0
        with torch.accelerator.device_index(0):
            torch.accelerator.set_device_index("spyre:0")
            torch.accelerator.synchronize()
        assert torch.float32 in torch.accelerator.get_device_capability()["supported_dtypes"]
        with pytest.raises((RuntimeError, ValueError), match="cpu|device"):
            torch.accelerator.set_device_index("cpu")

    def test_memory(self) -> None:
        kept = torch.ones(1 << 20, device="spyre")
        for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
            assert getattr(torch.accelerator, name)() == getattr(torch.spyre, name)() >= kept.nbytes
        torch.accelerator.reset_peak_memory_stats()
        torch.accelerator.reset_accumulated_memory_stats()
        torch.accelerator.empty_cache()
        stats = torch.accelerator.memory_stats()
        assert stats["allocated_bytes.all.peak"] == stats["allocated_bytes.all.current"]
        assert stats["allocated_bytes.all.allocated"] == 0

    def test_streams(self) -> None:
        stream = torch.spyre.Stream()
        torch.accelerator.set_stream(stream)
        assert torch.accelerator.current_stream() == torch.spyre.current_stream() == stream
        torch.accelerator.set_stream(torch.spyre.default_stream())

    @pytest.mark.skipif(not hasattr(torch.accelerator, "Graph"), reason="this version of PyTorch has no such class")
    def test_graphs_are_not_supported(self) -> None:
        with pytest.raises(RuntimeError, match="Graph is not supported on device type: spyre"):
            torch.accelerator.Graph()
