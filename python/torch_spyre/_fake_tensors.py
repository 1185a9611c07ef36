"""Fake tensors, which `torch.compile` and `torch.export` trace with: what they say of results is what the CPU gives.

Where kernels of PyTorch's devices return different strides, or different auxiliary results, the functions that predict
them ask which device it is. The kernels here are the CPU's.
"""

from __future__ import annotations

import functools

import torch


def install() -> None:
    """Makes that answer the CPU. Does nothing where PyTorch has no such question."""
    module = torch._meta_registrations
    torchs_own = getattr(module, "device_hint", None)
    if torchs_own is None:
        return

    @functools.wraps(torchs_own)
    def device_hint(tensor: object) -> str:
        hint: str = torchs_own(tensor)
        return "cpu" if hint == "spyre" else hint

    module.device_hint = device_hint
