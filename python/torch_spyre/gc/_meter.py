"""What one process wants collected at the end of a step, from what can be read there cheaply.

Between steps a training loop holds much the same: parameters, optimizer states, a batch. What the device holds beyond
the least since the last collection is growth, and growth that comes back step after step is garbage in cycles. Growth
that a collection does not bring back is taken for live, and counts no more.

Nothing here runs a collection, and nothing is shared between threads.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch_spyre.gc._collector import GENERATIONS
from torch_spyre.gc._limits import Generation, Limits


@dataclass(frozen=True)
class Device:
    """How a device is read: functions, so that the rest needs none."""

    capacity_bytes: int
    in_use_bytes: Callable[[], int]
    events: Callable[[], int]
    """Requests so far that found the device full; falls if someone resets the statistics."""


class Meter:
    """Growth of the device and of the heap since the last collections, and time spent in full ones."""

    def __init__(self, limits: Limits, device: Device) -> None:
        self.limits = limits
        self.young_bytes, self.full_bytes = limits.resolved_bytes(device.capacity_bytes)
        self.device = device
        self.events = device.events()
        self.pressed = False
        # The least bytes in use since the last collection, and since the last full one.
        self.floor = self.full_floor = device.in_use_bytes()
        # Young objects are those made since the last collection, when CPython's count was `base`; `aged` is how many
        # have survived young collections since the last full one.
        self.base = gc.get_count()[0]
        self.aged = 0
        self.full_cost_ns = self.full_total_ns = 0
        self.started_ns = time.perf_counter_ns()
        self.over_budget = False

    def wanted(self) -> Generation:
        """What is due now. `over_budget` then says whether a full collection was, and there was no time for it."""
        in_use, young_objects = self.device.in_use_bytes(), self.young_objects()
        self.floor = min(self.floor, in_use)
        self.full_floor = min(self.full_floor, in_use)
        full = (
            self.pressed
            or in_use - self.full_floor >= self.full_bytes
            or self.aged + young_objects >= self.limits.full_objects
        )
        young = in_use - self.floor >= self.young_bytes or young_objects >= self.limits.young_objects
        if not GENERATIONS:
            full, young = full or young, False
        self.over_budget = full and not self._affordable()
        if full and not self.over_budget:
            return Generation.FULL
        return Generation.YOUNG if young else Generation.NONE

    def new_events(self) -> int:
        """How many requests have found the device full since the last call."""
        events = self.device.events()
        new = events - self.events if events >= self.events else events
        self.events = events
        return new

    def young_objects(self) -> int:
        """Objects made and not yet gone since the last collection, about: CPython counts what it can track."""
        return gc.get_count()[0] - self.base

    def collected(self, generation: Generation, time_ns: int, survivors: int) -> None:
        """Starts counting anew after a collection that left `survivors` of the young objects."""
        self.floor = self.device.in_use_bytes()
        if generation is Generation.FULL:
            self.full_floor = self.floor
            self.aged = 0
            self.pressed = False
            self.full_cost_ns = time_ns
            self.full_total_ns += time_ns
        else:
            self.aged += max(0, survivors)
        self.base = gc.get_count()[0]

    def settled(self, *, frozen: bool) -> None:
        """After the collections that end the warm-up, or follow a thaw: they do not count for the share of the time. A
        freeze sets CPython's counts back, and what full collections cost from then on has nothing to do with before.
        """
        self.base = gc.get_count()[0]
        self.started_ns = time.perf_counter_ns()
        self.full_total_ns = 0
        if frozen:
            self.full_cost_ns = 0

    def _affordable(self) -> bool:
        """Whether one more full collection, as long as the last, stays within the share of the time since the start or
        the end of the warm-up.
        """
        if self.limits.time_share == 1:
            return True
        elapsed = time.perf_counter_ns() - self.started_ns
        return self.full_total_ns + self.full_cost_ns <= self.limits.time_share * elapsed
