"""Making Inductor decide for spyre as is right, where it asks for the device and not for the backend.

Three such questions are about correctness, and Inductor has no hook for them. The scheduler reorders the loops of nodes
to fuse them unless they say that they are on the CPU, which the C++ code generation cannot take. Lowering passes the
position in the tensor on to an argmax over several dimensions only if the device is the CPU; without it a reordered
loop gives another position. And it puts the result of an operator on a CPU scalar and a tensor on a device where the
tensor is only if that is a GPU, else where the first of the two is; for that alone spyre is none of the CPU's kind.
Other answers are about speed, and the right ones are the CPU's.

Each function is replaced by one that differs for spyre only.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch._inductor import ir, lowering
from torch._inductor.scheduler import BaseSchedulerNode

_MARK = "_treats_spyre_as_cpu"


def treat_as_cpu() -> None:
    """Replaces the three functions, once. Raises AttributeError if this Inductor does not have them."""
    _replace_is_cpu()
    _replace_get_device_type()
    _replace_is_gpu_of_lowering()


def _replace_is_cpu() -> None:
    original = BaseSchedulerNode.is_cpu
    if hasattr(original, _MARK):
        return

    @wraps(original)
    def is_cpu(self: BaseSchedulerNode) -> bool:
        if original(self):
            return True
        device = self.get_device()
        return device is not None and device.type == "spyre"

    setattr(is_cpu, _MARK, True)
    BaseSchedulerNode.is_cpu = is_cpu  # type: ignore[method-assign]


def _replace_get_device_type() -> None:
    original = ir.get_device_type
    if hasattr(original, _MARK):
        return

    @wraps(original)
    def get_device_type(x: Any) -> str | None:
        device_type = original(x)
        return "cpu" if device_type == "spyre" else device_type

    setattr(get_device_type, _MARK, True)
    ir.get_device_type = get_device_type


def _replace_is_gpu_of_lowering() -> None:
    original = lowering.is_gpu  # type: ignore[attr-defined]
    if hasattr(original, _MARK):
        return

    # The lowering of index_put(accumulate=True) asks too: PyTorch's own kernel then adds what atomics cannot.
    @wraps(original)
    def is_gpu(device: str | None) -> bool:
        return device == "spyre" or original(device)

    setattr(is_gpu, _MARK, True)
    lowering.is_gpu = is_gpu  # type: ignore[attr-defined]
