"""User hooks under memory pressure: what a program offers to give up before an allocation fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from torch_spyre._arguments import checked_int
from torch_spyre._lifecycle import core, lazy_init

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from torch_spyre._C import PressureEvent


class RemovableHandle:
    """Removes a hook: through `remove`, or at the end of a `with` block."""

    def __init__(self, number: int) -> None:
        self._number = number

    def remove(self) -> None:
        """Removes the hook, also from inside it. A second time it does nothing."""
        core().remove_pressure_hook(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()


def register_pressure_hook(fn: Callable[[PressureEvent], object], *, priority: int = 0) -> RemovableHandle:
    """Registers a function that is called when a device is full and collecting garbage was not enough.

    It is called as `fn(event)`, may free memory, and may allocate; what it returns is ignored. After each hook the
    allocation is tried again. The event has `device` (an index), `requested_bytes`, `free_bytes`,
    `largest_free_bytes`, `attempt` (counts the hooks called for the request, from 1) and `cause`: `"exhausted"`, or
    `"fragmented"` when enough is free but no block fits. What a hook raises is reported through `sys.unraisablehook`.

    Hooks run under every policy, on the allocating thread or on a thread of the allocator's, one request at a time. A
    hook should not wait for a lock that an allocating thread may hold.

    Args:
        fn: the function.
        priority: hooks with a higher priority are called first, those with the same in the order of registration.

    Raises:
        TypeError: `fn` is not callable, or `priority` no int.
        ValueError: `priority` does not fit in 64 bits.
    """
    lazy_init()
    if not callable(fn):
        raise TypeError(f"fn={fn!r} is not callable; expected a function of one argument")
    checked_int("priority", priority, "a priority", -(2**63), 2**63 - 1)
    return RemovableHandle(core().register_pressure_hook(fn, priority))
