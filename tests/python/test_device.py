"""`torch.spyre`: devices, streams, events, and what torch asks of any accelerator."""

from __future__ import annotations

import threading

import pytest
import torch

from conftest import RunScript

TWO_DEVICES = {"TORCH_SPYRE_ALLOC_CONF": "devices:2,device_memory:64MiB"}


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


def test_several_devices(run_script: RunScript) -> None:
    run_script(
        """
        import threading, torch
        assert torch.spyre.device_count() == torch.accelerator.device_count() == 2
        a = torch.ones(1024, device="spyre:1")
        assert a.get_device() == 1
        assert torch.spyre.memory_allocated(0) == 0 and torch.spyre.memory_allocated(1) >= 4096
        with torch.spyre.device(1):
            assert torch.spyre.current_device() == 1
            assert torch.ones(2, device="spyre").get_device() == 1
            seen = []
            thread = threading.Thread(target=lambda: seen.append(torch.spyre.current_device()))
            thread.start(); thread.join()
            assert seen == [0], "the current device is the thread's own"
        assert torch.spyre.current_device() == 0
        b = (a + 1) * 2
        assert b.get_device() == 1 and b.nonzero().get_device() == 1 and a.resize_(4096).get_device() == 1
        assert torch.spyre.memory_allocated(0) == 0, "results follow their arguments"
        assert torch.equal(b.to("spyre:0").cpu(), b.cpu())
        assert torch.spyre.can_device_access_peer(0, 1) is False
        for operation in (lambda x, y: x + y, torch.dot, lambda x, y: torch.cat([x, y])):
            try:
                operation(b, b.to("spyre:0"))
            except RuntimeError as error:
                assert "spyre:1 and spyre:0" in str(error), error
            else:
                raise SystemExit("two devices were mixed")
        torch.spyre.manual_seed_all(7)
        assert torch.equal(torch.rand(3, device="spyre:0").cpu(), torch.rand(3, device="spyre:1").cpu())
        w = torch.ones(4, device="spyre:1", requires_grad=True)
        (w * w).sum().backward()
        assert w.grad.get_device() == 1
        with torch.spyre.stream(torch.spyre.Stream(1)) as _:
            assert torch.spyre.current_device() == 1
        assert torch.spyre.current_device() == 0
        pair = [torch.ones(1, device="spyre:0"), torch.ones(1, device="spyre:1")]
        assert [each.get_device() for each in torch._foreach_add(pair, 1)] == [0, 1]
        """,
        env=TWO_DEVICES,
    ).check()


class TestStreams:
    def test_default_stream_is_current(self) -> None:
        assert torch.spyre.current_stream() == torch.spyre.default_stream()
        assert torch.spyre.current_stream().stream_id == 0

    def test_context(self) -> None:
        stream = torch.spyre.Stream()
        assert stream != torch.spyre.default_stream()
        assert isinstance(stream, torch.Stream)
        with torch.spyre.stream(stream):
            assert torch.spyre.current_stream() == stream
            assert (torch.ones(2, device="spyre") + 1).sum().item() == 4
            with torch.spyre.stream(None):
                assert torch.spyre.current_stream() == stream
        assert torch.spyre.current_stream() == torch.spyre.default_stream()

    def test_current_stream_is_the_threads_own(self) -> None:
        seen = []
        with torch.spyre.stream(torch.spyre.Stream()):
            thread = threading.Thread(target=lambda: seen.append(torch.spyre.current_stream().stream_id))
            thread.start()
            thread.join()
        assert seen == [0]

    def test_synchronisation(self) -> None:
        stream, other = torch.spyre.Stream(), torch.spyre.Stream()
        event = stream.record_event()
        other.wait_event(event)
        other.wait_stream(stream)
        stream.synchronize()
        torch.spyre.synchronize()
        torch.accelerator.synchronize()
        assert stream.query()
        assert event.query()

    def test_record_stream(self) -> None:
        torch.ones(2, device="spyre").record_stream(torch.spyre.current_stream())


class TestEvents:
    def test_elapsed_time(self) -> None:
        start, end = torch.spyre.Event(enable_timing=True), torch.spyre.Event(enable_timing=True)
        start.record()
        torch.ones(300, 300, device="spyre").mm(torch.ones(300, 300, device="spyre"))
        end.record()
        end.synchronize()
        assert end.query()
        assert 0 < start.elapsed_time(end) < 60_000
        assert end.elapsed_time(start) < 0

    def test_timing_has_to_be_enabled(self) -> None:
        first, second = torch.spyre.Event(), torch.spyre.Event()
        first.record()
        second.record()
        with pytest.raises((ValueError, RuntimeError), match="enable_timing"):
            first.elapsed_time(second)

    def test_unrecorded(self) -> None:
        first, second = torch.spyre.Event(enable_timing=True), torch.spyre.Event(enable_timing=True)
        assert first.query()
        with pytest.raises((ValueError, RuntimeError), match="recorded"):
            first.elapsed_time(second)

    def test_type(self) -> None:
        assert isinstance(torch.spyre.Event(), torch.spyre.Event)
        assert not isinstance(torch.ones(1), torch.spyre.Event)
        with pytest.raises(NotImplementedError, match="between processes"):
            torch.spyre.Event(interprocess=True)


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


def test_capability_lists_types() -> None:
    assert torch.float32 in torch.accelerator.get_device_capability()["supported_dtypes"]
