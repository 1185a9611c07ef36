"""Registering the device with Dynamo and Inductor, or a refusal where Inductor is not one that this was written for."""

from __future__ import annotations

from torch._inductor.codegen.common import register_backend_for_device
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.scheduler import BaseScheduling

from torch_spyre.inductor._refusal import Refusal


def register() -> None:
    """Registers code generation for spyre. What fails is kept and raised by the first compilation for spyre."""
    try:
        _register()
    except (ImportError, AttributeError, TypeError) as error:
        _register_refusal(error)


def _register() -> None:
    from torch._dynamo.device_interface import register_interface_for_device
    from torch._inductor.codegen.common import register_device_op_overrides

    from torch_spyre.inductor._as_cpu import treat_as_cpu
    from torch_spyre.inductor._device_interface import SpyreInterface, SpyreOpOverrides
    from torch_spyre.inductor._graph_pass import SpyreGraphPass
    from torch_spyre.inductor._scheduling import SpyreScheduling
    from torch_spyre.inductor._wrapper import NoCppWrapper, NoFxWrapper, SpyreWrapper

    treat_as_cpu()
    register_interface_for_device("spyre", SpyreInterface)
    register_device_op_overrides("spyre", SpyreOpOverrides())
    register_backend_for_device(
        "spyre",
        SpyreScheduling,
        SpyreWrapper,
        NoCppWrapper,
        NoFxWrapper,
        SpyreGraphPass(),
    )


def _register_refusal(error: Exception) -> None:
    # The classes are never used: the pass runs first.
    register_backend_for_device(
        "spyre", BaseScheduling, PythonWrapperCodegen, PythonWrapperCodegen, PythonWrapperCodegen, Refusal(error)
    )
