"""`torch.spyre.memory`: statistics of device memory, and what happens when it runs out.

Every `device` argument is the device asked about; None is this thread's current one. Sizes are bytes. All functions
raise RuntimeError for an index without a device, ValueError for a device of another type, and the reason if the devices
cannot be used.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Literal, TypeAlias

import torch

from torch_spyre._arguments import checked_bool, checked_int
from torch_spyre._cycle_report import (
    CycleCollection,
    CycleHolder,
    CycleReport,
    CycleSite,
    cycle_report,
    record_cycles,
    reset_cycle_report,
)
from torch_spyre._cycles import CycleWarning
from torch_spyre._held import TracebackHolding
from torch_spyre._held_report import HeldReport, Holder, held_report
from torch_spyre._index import DeviceLike, existing_index
from torch_spyre._lifecycle import core, lazy_init
from torch_spyre._memory_history import _dump_snapshot as _dump_snapshot
from torch_spyre._memory_history import _history_stream as _history_stream
from torch_spyre._memory_history import _record_memory_history as _record_memory_history
from torch_spyre._memory_history import _snapshot as _snapshot
from torch_spyre._memory_summary import format_summary
from torch_spyre._pressure_hooks import register_pressure_hook

OutOfMemoryError = torch.OutOfMemoryError

GcPolicy: TypeAlias = Literal["always", "respect_disable", "off"]

_MAX_TIMEOUT_MS = 365 * 24 * 3600 * 1000  # A year, as for gc_timeout_ms in the environment.
_GC_POLICIES = ("always", "respect_disable", "off")

__all__ = [
    "CycleCollection",
    "CycleHolder",
    "CycleReport",
    "CycleSite",
    "CycleWarning",
    "HeldReport",
    "Holder",
    "OutOfMemoryError",
    "TracebackHolding",
    "cycle_report",
    "empty_cache",
    "get_pressure_policy",
    "held_report",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "pressure_stats",
    "record_cycles",
    "register_pressure_hook",
    "reset_accumulated_memory_stats",
    "reset_cycle_report",
    "reset_peak_memory_stats",
    "reset_pressure_stats",
    "set_per_process_memory_fraction",
    "set_pressure_policy",
]


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total memory of a device, in bytes."""
    lazy_init()
    return core().mem_get_info(existing_index(device))


def empty_cache() -> None:
    """Gives back memory that the allocator holds without need."""
    lazy_init()
    core().empty_cache()


def memory_stats(device: DeviceLike = None) -> OrderedDict[str, int]:
    """Counters of a device under the names of `torch.cuda.memory_stats`, sorted.

    `allocated_bytes` counts rounded sizes and `requested_bytes` those asked for; `freed` grows when memory is really
    free.
    """
    lazy_init()
    return OrderedDict(sorted(core().memory_stats(existing_index(device)).items()))


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """`memory_stats` with a level of dictionaries for each dot in a name."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *parents, last = name.split(".")
        level = nested
        for parent in parents:
            level = level.setdefault(parent, {})
        level[last] = value
    return nested


def memory_allocated(device: DeviceLike = None) -> int:
    """Memory of live tensors, in bytes, sizes rounded up."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most memory that live tensors had since the start or `reset_peak_memory_stats`."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: DeviceLike = None) -> int:
    """The size of the memory regions acquired from the device for tensors."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most memory reserved since the start or `reset_peak_memory_stats`."""
    return memory_stats(device)["reserved_bytes.all.peak"]


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """A table of the memory statistics of a device, for people.

    Args:
        device: the device asked about.
        abbreviated: whether to leave out all but the first rows.
    """
    index = existing_index(device)
    stats, pressure = memory_stats(index), pressure_stats(index)
    return format_summary(stats, pressure, core().history_stream(), index, abbreviated=abbreviated)


def memory_snapshot(device: DeviceLike = None) -> list[dict[str, Any]]:
    """The memory segments with their blocks, in the form of `torch.cuda.memory_snapshot`.

    With history on a block has the stack that it was allocated from.

    Args:
        device: the device asked about; None, as in torch.cuda, is all devices.
    """
    lazy_init()
    indices = range(core().device_count()) if device is None else [existing_index(device)]
    return [segment for index in indices for segment in core().memory_snapshot(index, False)[0]]


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Sets the peak of every statistic to its current value."""
    lazy_init()
    core().reset_peak_memory_stats(existing_index(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Sets the accumulated statistics, such as `allocated` and `freed`, to 0."""
    lazy_init()
    core().reset_accumulated_memory_stats(existing_index(device))


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits what this process may use of a device; beyond the limit allocations run out of memory.

    Args:
        fraction: the share of the total memory, from 0 to 1.
        device: the device to limit.

    Raises:
        TypeError: `fraction` is not a number.
        ValueError: `fraction` is below 0 or above 1.
    """
    lazy_init()
    if isinstance(fraction, bool) or not isinstance(fraction, (float, int)):
        raise TypeError(f"Invalid type for fraction argument, must be `float`, not {type(fraction).__name__}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    core().set_memory_fraction(float(fraction), existing_index(device))


def pressure_stats(device: DeviceLike = None) -> dict[str, int]:
    """What was done when memory ran out. All keys exist from import on, as 0.

    `events`: requests that found no room although some state of the device could serve them. Each ends in `rescued`,
    of which `coalesced` needed no collection of their own, or in `failed`.
    `collections.young`, `collections.full`: collections that ran; `collections.skipped.REASON`: requests for which none
    did, by reason. `reclaimed_bytes`: bytes that collections freed. `collection_time_ns`, `collection_max_ns`: their
    time in nanoseconds, the sum and the longest. `collectors_abandoned`: collections that outlived their request.
    `hooks.run`, `hooks.failed`: calls of pressure hooks, and those that raised.
    """
    lazy_init()
    return core().pressure_stats(existing_index(device))


def reset_pressure_stats(device: DeviceLike = None) -> None:
    """Sets everything that `pressure_stats` counts to 0."""
    lazy_init()
    core().reset_pressure_stats(existing_index(device))


def set_pressure_policy(
    *, gc: GcPolicy | None = None, escalate: bool | None = None, timeout_ms: int | None = None
) -> None:
    """Says what happens when a device runs out of memory. An argument left out stays as it is.

    Args:
        gc: `"always"` (the default at start) runs Python's garbage collector also after `gc.disable()`;
            `"respect_disable"` does not then; `"off"` never runs it.
        escalate: whether the young generations are collected first (True at start).
        timeout_ms: the longest that one request may wait, at least 1 (10000 at start).

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument has a value that is not allowed.
    """
    lazy_init()
    if gc is not None and gc not in _GC_POLICIES:
        expected = ", ".join(repr(policy) for policy in _GC_POLICIES)
        raise ValueError(f"gc={gc!r} is not a policy; expected one of {expected}")
    if escalate is not None:
        checked_bool("escalate", escalate)
    if timeout_ms is not None:
        checked_int("timeout_ms", timeout_ms, "milliseconds", 1, _MAX_TIMEOUT_MS)
    core().set_pressure_policy(gc, escalate, timeout_ms)


def get_pressure_policy() -> dict[str, Any]:
    """The policy in force: the arguments of `set_pressure_policy` by name."""
    lazy_init()
    return core().get_pressure_policy()
