"""The module that is `torch.spyre`."""

from __future__ import annotations

import sys

from torch_spyre import gc, memory
from torch_spyre._device import (
    DeviceProperties,
    _is_in_bad_fork,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
    synchronize,
)
from torch_spyre._eager import keep_constant, keep_eager
from torch_spyre._lifecycle import lazy_init as _lazy_init
from torch_spyre._random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_spyre._streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from torch_spyre.memory import (
    OutOfMemoryError,
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)

__all__ = [
    "DeviceProperties",
    "Event",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "_is_in_bad_fork",
    "_lazy_init",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "gc",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]


keep_constant(is_available, is_bf16_supported, get_device_capability, get_device_name)
keep_constant(device_count, get_amp_supported_dtype)
keep_eager(globals()[name] for name in __all__)
keep_eager(getattr(memory, name) for name in memory.__all__)
keep_eager([gc.Plan, gc.planned])


def _inductor_backend_init() -> None:
    """What torch calls before it compiles something for the first time, whatever the device."""
    from torch_spyre import inductor

    inductor.register()


def __getattr__(name: str) -> bool:
    if name == "_initialized":  # Activation checkpointing asks, and keeps random states only if this is true.
        return is_initialized()
    # Versions of torch without that call look up a class of this name before they compile for the first time.
    if name == "Scheduling":
        _inductor_backend_init()
    raise AttributeError(f"module 'torch.spyre' has no attribute {name!r}")


def _publish_submodules() -> None:
    """Makes `import torch.spyre.memory` work; torch publishes `torch.spyre` itself."""
    sys.modules["torch.spyre.memory"] = memory
    sys.modules["torch.spyre.gc"] = gc
