"""One run of a plan, from entry to exit.

It acts at the ends of steps, on the thread that entered the plan. Only `thaw` comes from other threads, as a pressure
hook: it touches the collector's frozen objects and two counters, and takes no lock.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack

from torch_spyre import memory
from torch_spyre._pressure_hooks import RemovableHandle
from torch_spyre.gc._agreement import Alone, Ranks
from torch_spyre.gc._collector import Collector
from torch_spyre.gc._limits import Generation, Limits
from torch_spyre.gc._meter import Device, Meter
from torch_spyre.gc._statistics import Collection, PlanStatistics

_LAST = -(1 << 63)
"""The priority of the hook that thaws: after all hooks of the program."""

_MOST_WAVES = 4
"""Full collections before a freeze: what one sets free may be garbage for the next."""


class Run:
    """From one entry of a plan to its exit."""

    def __init__(self, limits: Limits, device: Device, agreement: Alone | Ranks, statistics: PlanStatistics) -> None:
        self.limits = limits
        self.agreement = agreement
        self.statistics = statistics
        self.meter = Meter(limits, device)
        self.asked = False
        self.hook: RemovableHandle | None = None
        self.thread, self.process = threading.get_ident(), os.getpid()
        with ExitStack() as undo:
            self.collector = Collector()
            undo.callback(self.collector.restore)
            self.collector.take()
            if self.collector.was_enabled and memory.get_pressure_policy()["gc"] == "respect_disable":
                # That the collector is disabled says nothing now: the program has not disabled it.
                memory.set_pressure_policy(gc="always")
                undo.callback(_respect_disable_again)
            undo.callback(self._remove_hook)
            if limits.warmup_steps == 0:
                self._settle(asked_here=False)
            self.undo = undo.pop_all()

    def step(self, agreed: Generation | None) -> Generation:
        """See `Plan.step`."""
        self._check_caller()
        self.statistics.steps += 1
        self._notice_pressure(shared=isinstance(self.agreement, Ranks))
        due = self.agreement.exchange(self.statistics.steps, self._ask) if agreed is None else agreed
        if self.statistics.steps == self.limits.warmup_steps:
            self._settle(asked_here=False)
            return Generation.FULL
        if due is Generation.NONE:
            return due
        self.statistics.asked_elsewhere += not self.asked
        if due is Generation.FULL and self.statistics.thawed and not self.collector.frozen_objects:
            self._settle(asked_here=self.asked)
        else:
            self._collect(due, asked_here=self.asked)
        return due

    def wanted(self) -> Generation:
        """See `Plan.wanted`."""
        self._check_caller()
        self._notice_pressure(shared=True)
        return self._ask()

    def thaw(self, _event: object) -> None:
        """As a pressure hook: the device is full, and what was frozen may hold it in cycles that have died since."""
        if self.collector.thaw():
            self.statistics.frozen_objects = 0
            self.statistics.thawed += 1

    def end(self, *, failed: bool) -> None:
        """Whatever fails here, the collector is given back. A forked child got it back when it was forked."""
        if os.getpid() != self.process:
            self.undo.pop_all()
            return
        with self.undo:
            self.agreement.leave(failed=failed)

    def _remove_hook(self) -> None:
        if self.hook is not None:
            self.hook.remove()

    def _check_caller(self) -> None:
        if os.getpid() != self.process:
            raise RuntimeError("a collection plan is used in the process that entered it, and this is a forked child")
        if threading.get_ident() != self.thread:
            raise RuntimeError("a collection plan is used on the thread that entered it, and this is another")

    def _notice_pressure(self, *, shared: bool) -> None:
        new = self.meter.new_events()
        self.statistics.emergencies += new
        # What filled this device is about to fill those of other ranks: one stop together, instead of one for each.
        if new and shared:
            self.meter.pressed = True

    def _ask(self) -> Generation:
        wanted = self.meter.wanted()
        self.statistics.deferred += self.meter.over_budget
        self.asked = wanted is not Generation.NONE
        return wanted

    def _collect(self, generation: Generation, *, asked_here: bool) -> int:
        """Returns the objects found; 0 also if another thread was collecting."""
        before, young_objects = self.meter.device.in_use_bytes(), self.meter.young_objects()
        collected = self.collector.collect(generation)
        if collected is None:
            self.statistics.missed += 1
            return 0
        self.meter.collected(generation, collected.time_ns, young_objects - collected.objects)
        self.statistics.add(
            Collection(
                step=self.statistics.steps,
                generation=generation,
                asked_here=asked_here,
                objects=collected.objects,
                reclaimed_bytes=max(0, before - self.meter.floor),
                time_ns=collected.time_ns,
            )
        )
        return collected.objects

    def _settle(self, *, asked_here: bool) -> None:
        """Collects everything, and freezes what is left. What one collection sets free may be garbage for the next."""
        for _ in range(_MOST_WAVES):
            if self._collect(Generation.FULL, asked_here=asked_here) == 0:
                break
        if self.limits.freeze:
            self.collector.freeze()
            self.statistics.frozen_objects = self.collector.frozen_objects
            if self.hook is None and self.collector.frozen_objects:
                self.hook = memory.register_pressure_hook(self.thaw, priority=_LAST)
        self.meter.settled(frozen=self.collector.frozen_objects > 0)


def _respect_disable_again() -> None:
    """Unless the program has set another policy meanwhile."""
    if memory.get_pressure_policy()["gc"] == "always":
        memory.set_pressure_policy(gc="respect_disable")
