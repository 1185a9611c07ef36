"""Turning what a user calls a device into the index of one that exists."""

from __future__ import annotations

from typing import TypeAlias

import torch

from torch_spyre._lifecycle import core

DeviceLike: TypeAlias = torch.device | str | int | None
"""What the functions of `torch.spyre` take: `"spyre"`, `"spyre:1"`, a torch.device, an index, or None."""


def requested_index(device: DeviceLike) -> int | None:
    """The index that `device` names, or None where it leaves the choice open. The index need not exist.

    Raises ValueError for a device of another type, TypeError for what is no device.
    """
    if device is None or (isinstance(device, int) and not isinstance(device, bool)):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if not isinstance(device, torch.device):
        raise TypeError(f"Expected a device, its name, its index or None, but got: {device!r}")
    if device.type != "spyre":
        raise ValueError(f"Expected a spyre device, but got: {device}")
    return device.index


def existing_index(device: DeviceLike) -> int:
    """The index of an existing device; the current one where `device` leaves the choice open.

    Raises ValueError for a device of another type, TypeError for what is no device, RuntimeError ("invalid device
    ordinal") for an index without a device, and the reason if no device can be used.
    """
    index = requested_index(device)
    if index is None:
        return core().current_device()
    if not 0 <= index < core().device_count():
        torch.ops.spyre.check_device(index)
    return index
