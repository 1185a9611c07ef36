"""What a plan counts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from torch_spyre.gc._limits import Generation

RECENT = 256
"""Collections that are remembered one by one."""


@dataclass(frozen=True)
class Collection:
    """One planned collection."""

    step: int
    """The step after which it ran, from 1."""
    generation: Generation
    """`YOUNG` or `FULL`."""
    asked_here: bool
    """Whether this process asked for it, alone or with others. False for the one that ends the warm-up."""
    objects: int
    """Unreachable objects that it found."""
    reclaimed_bytes: int
    """Bytes of the device that were in use before and not after; 0 if other threads took more meanwhile."""
    time_ns: int
    """How long it took, in nanoseconds."""


@dataclass
class PlanStatistics:
    """Counts since the plan was entered."""

    steps: int = 0
    """Calls of `step`."""
    young: int = 0
    """Planned collections of the young generations that ran."""
    full: int = 0
    """Planned collections of everything that ran."""
    asked_elsewhere: int = 0
    """Of both, those that only other ranks had asked for."""
    deferred: int = 0
    """Steps after which a full collection was due but would have exceeded the time share."""
    missed: int = 0
    """Planned collections that did not run because another thread was collecting just then."""
    emergencies: int = 0
    """Requests that found the device full (`events` of `pressure_stats`)."""
    time_ns: int = 0
    """Time in planned collections, in nanoseconds."""
    longest_ns: int = 0
    """The longest of them."""
    reclaimed_bytes: int = 0
    """Bytes of the device that planned collections freed."""
    frozen_objects: int = 0
    """Objects that the plan has frozen; 0 before the end of the warm-up, and while they are thawed."""
    thawed: int = 0
    """How often they were given back to the collector because the device was full and nothing else had helped."""
    agreements: int = 0
    """All-reduces made."""
    agreement_wait_ns: int = 0
    """Time in which their results were waited for, in nanoseconds."""
    recent: deque[Collection] = field(default_factory=lambda: deque(maxlen=RECENT))
    """The latest planned collections, oldest first."""

    def add(self, collection: Collection) -> None:
        """Counts one that ran."""
        if collection.generation is Generation.FULL:
            self.full += 1
        else:
            self.young += 1
        self.time_ns += collection.time_ns
        self.longest_ns = max(self.longest_ns, collection.time_ns)
        self.reclaimed_bytes += collection.reclaimed_bytes
        self.recent.append(collection)
