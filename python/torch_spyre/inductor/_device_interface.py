"""What Dynamo and Inductor ask about the device while they compile."""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.device_interface import DeviceInterface
from torch._inductor.codegen.cpu_device_op_overrides import CpuDeviceOpOverrides

from torch_spyre import _device, _lifecycle, memory

if TYPE_CHECKING:
    from torch_spyre._index import DeviceLike

_WorkerProperties = namedtuple("_WorkerProperties", ["name", "multi_processor_count"])


class SpyreInterface(DeviceInterface):
    """Devices by index. Streams and events are left out: what a compiled function does with them stays eager."""

    device = _device.device

    class Worker:
        """The same, asked where Inductor may be compiling in a process of its own."""

        @staticmethod
        def set_device(device: DeviceLike) -> None:
            """Makes a device this thread's current one."""
            _device.set_device(device)

        @staticmethod
        def current_device() -> int:
            """The index of this thread's current device."""
            return _device.current_device()

        @staticmethod
        def get_device_properties(device: DeviceLike = None) -> Any:
            """The name of a device, and how many threads its kernels run on."""
            return _WorkerProperties(_device.get_device_name(device), torch.get_num_threads())

    @staticmethod
    def current_device() -> int:
        """The index of this thread's current device."""
        return _device.current_device()

    @staticmethod
    def set_device(device: DeviceLike) -> None:
        """Makes a device this thread's current one."""
        _device.set_device(device)

    @staticmethod
    def exchange_device(device: int) -> int:
        """Makes a device the current one and returns the one before."""
        previous = _device.current_device()
        _device.set_device(device)
        return previous

    @staticmethod
    def maybe_exchange_device(device: int) -> int:
        """The same; a negative index changes nothing."""
        return SpyreInterface.exchange_device(device) if device >= 0 else device

    @staticmethod
    def device_count() -> int:
        """The number of devices."""
        return _device.device_count()

    @staticmethod
    def is_available() -> bool:
        """Whether the devices can be used. Unlike `torch.spyre.is_available` it does not warn."""
        return _lifecycle.usable()

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        """A handle that nothing uses: work is done when the call that asks for it returns."""
        return 0

    @staticmethod
    def synchronize(device: DeviceLike = None) -> None:
        """Waits for all work on a device."""
        _device.synchronize(device)

    @staticmethod
    def get_compute_capability(device: DeviceLike = None) -> str:
        """Nothing that generated code depends on."""
        return ""

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """Whether kernels may use bfloat16, which they may."""
        return True

    @staticmethod
    def memory_allocated(device: DeviceLike = None) -> int:
        """Bytes allocated on a device."""
        return memory.memory_allocated(device)


class SpyreOpOverrides(CpuDeviceOpOverrides):
    """Snippets of generated code that name the device."""

    def aten_device_type(self) -> str:
        """The device type in C++."""
        return "at::kPrivateUse1"
