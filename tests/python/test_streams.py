"""Streams and events of the device: `torch.spyre.Stream` and `Event`, and `torch.Stream` and `torch.Event`."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable

import pytest
import torch


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

    def test_order(self) -> None:
        """Work is done when the call returns, so what one stream wrote another reads, with or without waiting."""
        tensor, seen = torch.zeros(1000, device="spyre"), []
        streams = [torch.spyre.Stream() for _ in range(3)]
        for step in range(30):
            with torch.spyre.stream(streams[step % 3]):
                tensor.add_(1)
                seen.append(tensor.sum().item())
        assert seen == [1000.0 * (step + 1) for step in range(30)]

    def test_nesting_and_errors(self) -> None:
        first, second = torch.spyre.Stream(), torch.spyre.Stream()
        with torch.spyre.stream(first):
            with pytest.raises(ZeroDivisionError), torch.spyre.stream(second):
                1 // int(torch.spyre.current_stream() != second)
            assert torch.spyre.current_stream() == first
            with second as entered:
                assert entered is second
                assert torch.accelerator.current_stream() == second
            assert torch.spyre.current_stream() == first
        assert torch.spyre.current_stream() == torch.spyre.default_stream()

    def test_set_stream(self) -> None:
        stream = torch.spyre.Stream()
        torch.spyre.set_stream(stream)
        try:
            assert torch.accelerator.current_stream() == torch.spyre.current_stream() == stream
            torch.accelerator.set_stream(torch.spyre.default_stream())
            assert torch.spyre.current_stream().stream_id == 0
        finally:
            torch.spyre.set_stream(torch.spyre.default_stream())

    def test_priorities(self) -> None:
        assert torch.spyre.Stream.priority_range() == (0, -3)
        assert torch.spyre.default_stream().priority == torch.spyre.Stream().priority == 0
        urgent = torch.spyre.Stream(priority=-1)
        with torch.spyre.stream(urgent):
            assert torch.spyre.current_stream().priority == -1
        assert torch.spyre.Stream(priority=-100).priority == -3
        with pytest.raises(RuntimeError, match="Expected spyre stream priority to be less than or equal to 0, got 1"):
            torch.spyre.Stream(priority=1)

    def test_torchs_own_class(self) -> None:
        made = torch.Stream(device="spyre", priority=-2)
        assert made.device == torch.device("spyre", 0)
        assert made.query()
        made.synchronize()
        with made:
            assert torch.spyre.current_stream() == made
            assert torch.spyre.current_stream().priority == -2
        assert made != torch.Stream(device="spyre")
        assert len({made, torch.Stream(device="spyre")}) == 2
        with pytest.raises(RuntimeError, match="invalid device ordinal: got device index 5"):
            torch.Stream(device="spyre:5")

    def test_backward_runs_on_the_stream_of_the_forward(self) -> None:
        weight, seen = torch.ones(3, device="spyre", requires_grad=True), []
        stream = torch.spyre.Stream()
        with torch.spyre.stream(stream):
            product = weight * 2
            product.register_hook(lambda grad: seen.append(torch.spyre.current_stream()))
        product.sum().backward()
        assert seen == [stream]

    def test_what_a_stream_is_not(self) -> None:
        for use in (
            lambda: torch.ones(2).record_stream(torch.spyre.Stream()),  # As with CUDA: not for CPU tensors.
            lambda: torch.spyre.Stream("spyre:3"),
        ):
            with pytest.raises((NotImplementedError, RuntimeError), match="'CPU' backend|invalid device ordinal"):
                use()
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(torch.spyre.Stream())


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

    @pytest.mark.parametrize("timed", [(False, False), (True, False), (False, True)])
    def test_timing_has_to_be_enabled(self, timed: tuple[bool, bool]) -> None:
        first, second = (torch.spyre.Event(enable_timing=each) for each in timed)
        first.record()
        second.record()
        with pytest.raises(ValueError, match="Both events must be created with argument 'enable_timing=True'"):
            first.elapsed_time(second)

    def test_unrecorded(self) -> None:
        first, second = torch.spyre.Event(enable_timing=True), torch.spyre.Event(enable_timing=True)
        assert first.query()
        with pytest.raises(ValueError, match="Both events must be recorded before calculating elapsed time"):
            first.elapsed_time(second)

    def test_type(self) -> None:
        assert isinstance(torch.spyre.Event(), torch.spyre.Event)
        assert not isinstance(torch.ones(1), torch.spyre.Event)
        with pytest.raises(NotImplementedError, match="between processes"):
            torch.spyre.Event(interprocess=True)

    def test_recording_again_moves_the_event(self) -> None:
        events = [torch.spyre.Event(enable_timing=True) for _ in range(3)]
        events[0].record()
        events[1].record()
        torch.ones(100, 100, device="spyre").mm(torch.ones(100, 100, device="spyre"))
        events[2].record()
        before = events[0].elapsed_time(events[1])
        events[1].record()
        assert before <= events[0].elapsed_time(events[2]) <= events[0].elapsed_time(events[1])

    @pytest.mark.parametrize("make", [torch.spyre.Event, lambda: torch.Event("spyre")])
    def test_waiting(self, make: Callable[[], torch.Event]) -> None:
        event, stream, other = make(), torch.spyre.Stream(), torch.Stream(device="spyre")
        event.synchronize()
        event.record(stream)
        event.wait()
        event.wait(other)
        other.wait_event(event)
        assert stream.record_event(event) is event
        assert isinstance(stream.record_event(), torch.Event)
        assert event.query()
        assert event.device == stream.device == torch.device("spyre", 0)
