"""`torch.nn.DataParallel` and `torch.nn.parallel`: copies between devices.

`torch.nn.parallel.comm` checks its arguments and calls functions that torch has for CUDA alone. Here is what they do,
for tensors of this device and for CPU tensors where there is no CUDA device; anything else is left to torch's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch


def install() -> None:
    """Puts the functions below in front of torch's."""
    for function in (_broadcast, _broadcast_out, _broadcast_coalesced, _scatter, _scatter_out, _gather, _gather_out):
        setattr(torch._C, function.__name__, _in_front_of(getattr(torch._C, function.__name__, None), function))


def _in_front_of(torchs_own: Callable[..., Any] | None, ours: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(ours)
    def chosen(tensors: Any, *arguments: Any) -> Any:
        each = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        types = {tensor.device.type for tensor in each}
        if torchs_own is None or "spyre" in types or (types <= {"cpu"} and not torch.cuda.is_available()):
            return ours(tensors, *arguments)
        return torchs_own(tensors, *arguments)

    return chosen


def _device(index: int) -> torch.device:
    return torch.device("spyre", index)


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    return [tensor.to(_device(index)) for index in devices]


def _broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [each.copy_(tensor, non_blocking=True) for each in out]


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    if any(tensor.device != _device(devices[0]) for tensor in tensors):
        raise RuntimeError(f"All tensors must be on devices[0]: {devices[0]}")
    return [[tensor.to(_device(index)) for tensor in tensors] for index in devices]


def _scatter(
    tensor: torch.Tensor, devices: Sequence[int], chunk_sizes: Sequence[int] | None, dim: int, streams: object
) -> list[torch.Tensor]:
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    if chunk_sizes is not None and len(chunk_sizes) != len(devices):
        raise RuntimeError(
            f"Expected devices and chunk_sizes to be of same length, but got len(devices) = {len(devices)} and "
            f"len(chunk_sizes) = {len(chunk_sizes)}"
        )
    chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)
    # A short tensor has fewer chunks than there are devices.
    return [chunk.to(_device(index), non_blocking=True) for chunk, index in zip(chunks, devices, strict=False)]


def _scatter_out(
    tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int, streams: object
) -> Sequence[torch.Tensor]:
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    chunks = tensor.split([each.size(dim) for each in out], dim)
    return [each.copy_(chunk, non_blocking=True) for each, chunk in zip(out, chunks, strict=True)]


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    if destination is None:
        destination = torch.accelerator.current_device_index()
    device = torch.device("cpu") if destination < 0 else _device(destination)
    return torch.cat([tensor.to(device, non_blocking=True) for tensor in tensors], dim)


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    return torch.cat([tensor.to(out.device, non_blocking=True) for tensor in tensors], dim, out=out)
