"""Python's collector while a plan is active: off, run on demand, partly frozen, and afterwards as it was.

The collector belongs to the process, so one plan at a time can be active. No lock is held while anything here runs
Python code of others; `_lock` is for who takes `_owner`, which its owner gives back without.
"""

from __future__ import annotations

import gc
import os
import sysconfig
import threading
import time
import warnings
from typing import NamedTuple

from torch_spyre.gc._limits import Generation

GENERATIONS = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""Whether there are young generations: free-threaded builds have none."""

_collect = gc.collect  # Programs replace it, also by something that does nothing.

_lock = threading.Lock()
_owner: Collector | None = None


class Collected(NamedTuple):
    """A collection that ran."""

    objects: int
    time_ns: int


class Collector:
    """Takes the collector over on `take`, and gives it back on `restore`, whatever comes in between: also a signal's
    exception in the middle of either, as where the first collection after `gc.enable` is a long one.

    `freeze`, `thaw` and `restore` may meet: `thaw` comes from any thread, under memory pressure. Each is one call of
    the collector's between two looks at `frozen_objects`; the worst that a race does is to thaw a little later.
    """

    def __init__(self) -> None:
        self.was_enabled = False
        self.frozen_objects = 0

    def take(self) -> None:
        """Turns automatic collection off. Raises RuntimeError if another plan has the collector."""
        global _owner
        with _lock:
            if _owner is not None:
                raise RuntimeError(
                    "a collection plan is active already, and Python has one collector; leave that plan first, or call "
                    "its step()"
                )
            self.was_enabled = gc.isenabled()
            _owner = self
        gc.disable()

    def collect(self, generation: Generation) -> Collected | None:
        """Runs a collection; None if it did not run, since another thread was collecting.

        `gc.collect()` returns 0 at once then, so what counts is that a callback saw it on this thread.
        """
        me = threading.get_ident()
        phases: list[str] = []

        def seen(phase: str, _info: object) -> None:
            if threading.get_ident() == me:
                phases.append(phase)

        # Behind the allocator's first entry and before its last (docs/lock_ordering.md).
        gc.callbacks.insert(1, seen)
        started = time.perf_counter_ns()
        try:
            objects = _collect(1) if generation is Generation.YOUNG and GENERATIONS else _collect()
        finally:
            elapsed = time.perf_counter_ns() - started
            if seen in gc.callbacks:
                gc.callbacks.remove(seen)
        return Collected(objects, elapsed) if phases else None

    def freeze(self) -> None:
        """Takes what is alive out of collections. Collect before. Nothing if others have frozen objects, since only all
        frozen objects together can be thawed.
        """
        if gc.get_freeze_count() == 0:
            gc.freeze()
            self.frozen_objects = gc.get_freeze_count()

    def thaw(self) -> bool:
        """Gives what `freeze` has frozen back to the collector; False if nothing is, or others have frozen more since:
        the number of frozen objects falls when some die, and grows through `gc.freeze` alone.
        """
        if self.frozen_objects == 0 or gc.get_freeze_count() > self.frozen_objects:
            return False
        self.frozen_objects = 0
        gc.unfreeze()
        return True

    def restore(self) -> None:
        """Leaves the collector as it was found, if it was taken."""
        global _owner
        if _owner is not self:
            return
        try:
            self.thaw()
        finally:
            try:
                if self.was_enabled:
                    gc.enable()
                else:
                    gc.disable()
            finally:
                _owner = None  # No call, in which a signal's handler could run, and nobody else stores here now.
        if self.frozen_objects:  # At the end: the warning may be raised as an error.
            warnings.warn(
                f"{gc.get_freeze_count()} objects stay frozen: besides the collection plan, which froze "
                f"{self.frozen_objects}, something called gc.freeze(), and gc.unfreeze() thaws all or nothing",
                RuntimeWarning,
                stacklevel=2,
            )


def _after_fork() -> None:
    """A forked child, such as a worker of a DataLoader, makes no steps: it collects as if there were no plan."""
    global _lock, _owner
    _lock = threading.Lock()
    if _owner is not None and _owner.was_enabled:
        gc.enable()
    _owner = None


os.register_at_fork(after_in_child=_after_fork)
