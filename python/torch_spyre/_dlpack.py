"""DLPack: says which device a tensor is on, which torch asks of devices that kept their placeholder's name only.

`Tensor.__dlpack__` and capsules work by themselves; consumers ask `__dlpack_device__` first.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary
from torch.utils import dlpack


def install() -> None:
    """Makes `Tensor.__dlpack_device__` know tensors of this device, as an extension device with the same index."""
    torchs_own = torch.Tensor.__dlpack_device__

    @functools.wraps(torchs_own)
    def dlpack_device(self: torch.Tensor) -> Any:
        # Subclasses are asked first, as in torch: they may not even allow a look at the device.
        if has_torch_function_unary(self):
            return handle_torch_function(dlpack_device, (self,), self)
        if self.device.type == "spyre":
            return (dlpack.DLDeviceType.kDLExtDev, self.device.index)
        return torchs_own(self)

    torch.Tensor.__dlpack_device__ = dlpack_device  # type: ignore[method-assign]
    wrapper = getattr(dlpack, "ReadOnlyTensorWrapper", None)
    if wrapper is not None:  # It lists by identity what may be called on it.
        wrapper._DLPACK_ALLOWED |= {dlpack_device}
