"""`torch.spyre`: streams and events.

The device finishes every operation before the call returns. A stream is therefore a label without effect on order, and
an event is complete as soon as it is recorded; elapsed times are host times.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import torch

from torch_spyre._index import DeviceLike, existing_index
from torch_spyre._lifecycle import lazy_init

_MOST_URGENT = -3
"""The last bits of a stream's id are its priority, negated: kMostUrgent in the shim."""


class Stream(torch.Stream):
    """A stream of a device.

    Args:
        device: the device; None is the current one.
        priority: 0, or less for a more urgent stream; without effect, since all work is done in order.
    """

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> Self:
        lazy_init()
        if "stream_id" in kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, torch.device("spyre", existing_index(device)), priority=priority)

    @property
    def priority(self) -> int:
        """The priority, within `priority_range()`."""
        return -(self.stream_id & -_MOST_URGENT)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The priorities of the least and of the most urgent streams."""
        return (0, _MOST_URGENT)

    def __repr__(self) -> str:
        return f"<torch.spyre.Stream device={self.device} stream_id={self.stream_id}>"


class _EventType(type):
    """Makes the events of this device, which are torch.Event objects, instances of `torch.spyre.Event`."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "spyre"


class Event(metaclass=_EventType):
    """A point in a stream. The objects are torch.Event, which compares times only with its own class.

    Args:
        enable_timing: whether `elapsed_time`, in milliseconds, works.
        blocking: without effect.
        interprocess: must be False; there are no events between processes.
    """

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        """Makes an event of the current device; it is not recorded yet."""
        lazy_init()
        if interprocess:
            raise NotImplementedError("spyre has no events between processes")
        return torch.Event(torch.device("spyre"), enable_timing=enable_timing, blocking=blocking)


def _wrap(stream: torch.Stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def current_stream(device: DeviceLike = None) -> Stream:
    """This thread's current stream of a device."""
    lazy_init()
    return _wrap(torch.accelerator.current_stream(torch.device("spyre", existing_index(device))))


def default_stream(device: DeviceLike = None) -> Stream:
    """The stream that a device has from the start."""
    lazy_init()
    index = existing_index(device)
    current = torch.accelerator.current_stream(torch.device("spyre", index))
    return Stream(stream_id=0, device_index=index, device_type=current.device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes a stream this thread's current one, and its device the current device. None does nothing."""
    if stream is None:
        return
    lazy_init()
    torch.accelerator.set_stream(stream)


class StreamContext:
    """Context manager that selects a stream and its device, returned by `torch.spyre.stream`; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: list[Stream] = []

    def __enter__(self) -> None:
        """Selects the stream."""
        if self.stream is not None:
            # What the stream's device had comes back first, then the stream and the device of the caller.
            self._previous += [current_stream(), current_stream(self.stream.device)]
            set_stream(self.stream)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Selects the stream that was current before."""
        if self.stream is not None:
            set_stream(self._previous.pop())
            set_stream(self._previous.pop())


def stream(stream: torch.Stream | None) -> StreamContext:
    """A context manager in which `stream` is this thread's current stream of its device."""
    return StreamContext(stream)
