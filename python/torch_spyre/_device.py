"""`torch.spyre`: the devices, and which one is current.

A `device` argument that is None is this thread's current device. Functions that use a device raise RuntimeError for an
index without a device, ValueError for a device of another type, and the reason if the devices cannot be used.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from types import TracebackType

import torch

from torch_spyre import _lifecycle
from torch_spyre._index import DeviceLike, existing_index, requested_index
from torch_spyre._lifecycle import core, lazy_init

_warned = False


def _usable() -> bool:
    """Whether the devices can be used; warns with the reason, once, if not."""
    global _warned
    reason = _lifecycle.failure()
    if reason is None:
        return True
    if not _warned:
        _warned = True
        warnings.warn(f"spyre is not available: {reason}", stacklevel=3)
    return False


def is_available() -> bool:
    """Whether there is a device that can be used. Never raises; warns with the reason, once, if there is none."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether the devices are set up, which they are from import on unless they cannot be used."""
    return _lifecycle.usable() and not _is_in_bad_fork()


def init() -> None:
    """Does nothing but raise the reason if the devices cannot be used: importing has set them up."""
    lazy_init()


def _is_in_bad_fork() -> bool:
    """Whether this process was forked from one that used the devices, so that it cannot. torch asks when seeding."""
    return _lifecycle.usable() and core().is_in_bad_fork()


def device_count() -> int:
    """The number of devices. Never raises, because torch asks in programs that use no device; see is_available."""
    return core().device_count() if _usable() else 0


def current_device() -> int:
    """The index of this thread's current device."""
    lazy_init()
    return core().current_device()


def set_device(device: DeviceLike) -> None:
    """Makes a device this thread's current one. A negative index does nothing.

    Raises RuntimeError for an index without a device and ValueError for a device of another type or without an index.
    """
    lazy_init()
    index = requested_index(device)
    if index is None:
        raise ValueError(f"Expected a spyre device with a specified index or an integer, but got: {device}")
    if index >= 0:
        core().set_device(existing_index(index))


class device:  # noqa: N801
    """Context manager that changes this thread's current device.

    Args:
        device: the device to select; a negative index or None changes nothing.
    """

    def __init__(self, device: DeviceLike) -> None:
        index = requested_index(device)
        self.idx = -1 if index is None else index
        self.prev_idx = -1

    def __enter__(self) -> None:
        """Selects the device. Raises RuntimeError for an index without a device."""
        if self.idx >= 0:
            self.prev_idx = current_device()
            set_device(self.idx)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Selects the previous device again."""
        if self.prev_idx >= 0:
            core().set_device(self.prev_idx)


class device_of(device):  # noqa: N801
    """Context manager that changes the current device to that of a tensor or storage; no-op if it is elsewhere."""

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage) -> None:
        super().__init__(obj.device if obj.device.type == "spyre" else None)


def synchronize(device: DeviceLike = None) -> None:
    """Waits for all work on a device, which is done when the calls that ask for it return."""
    lazy_init()
    existing_index(device)


@dataclass(frozen=True, kw_only=True)
class DeviceProperties:
    """What `get_device_properties` returns.

    Attributes:
        name: what kind of device it is, for people.
        total_memory: capacity in bytes.
        regions: number of memory regions that tensors may be placed in.
        memory_domains: number of memory domains that the regions are divided into.
        kind: `SIM`, `PF` or `VF`, after the environment variable `FLEX_DEVICE`.
        major, minor: the capability.
    """

    name: str
    total_memory: int
    regions: int
    memory_domains: int
    kind: str
    major: int
    minor: int


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Name, memory and layout of a device."""
    lazy_init()
    major, minor = get_device_capability(device)
    properties = core().device_properties(existing_index(device))
    return DeviceProperties(
        name=properties["name"],
        total_memory=properties["total_memory"],
        regions=properties["regions"],
        memory_domains=properties["memory_domains"],
        kind=properties["kind"],
        major=major,
        minor=minor,
    )


def get_device_name(device: DeviceLike = None) -> str:
    """The name of a device, for people."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """Major and minor capability of a device: (1, 0), the first generation."""
    lazy_init()
    existing_index(device)
    return (1, 0)


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Whether one device can reach the memory of another directly: no, copies go through the host.

    Raises ValueError if the two are the same device.
    """
    lazy_init()
    index, peer = existing_index(device), existing_index(peer_device)
    if index == peer:
        raise ValueError(f"Expected two different devices, but got spyre:{index} twice")
    return False


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 tensors work, which they do."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The types that `torch.autocast("spyre")` may cast to."""
    return [torch.bfloat16, torch.float16]
