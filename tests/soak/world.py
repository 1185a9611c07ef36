"""What all threads of the soak share, and what one thread of it is."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from random import Random

import torch
from ledger import Ledger, Provocations, Turnstile

from torch_spyre import _C

KIB = 1 << 10
MIB = 1 << 20

DEVICES = 2
DEVICE_BYTES = 24 * MIB

LIVE_LIMIT_BYTES = 5 * MIB
"""Of each device. Live memory may be frozen (`gc.freeze`), die as cycles, and live again: twice this. What else there
is, in finalizers and temporaries, is small, and so is what fragmentation costs with blocks of at most 512 KiB."""

TIMEOUTS_MS = (30_000, 60_000)
"""Deadlines outside of provocations: far more than a collection takes on any machine, less than a stall. A request that
waits until then has lost something; only provocations let deadlines pass on purpose."""


class Fault(AssertionError):  # noqa: N818
    """The allocator, or the accounting of this program, did what it must not."""


@dataclass
class World:
    """Shared by all threads."""

    seed: int
    stop: threading.Event = field(default_factory=threading.Event)
    provocations: Provocations = field(default_factory=Provocations)
    turnstile: Turnstile = field(default_factory=Turnstile)
    ledgers: list[Ledger] = field(default_factory=lambda: [Ledger(LIVE_LIMIT_BYTES) for _ in range(DEVICES)])
    inboxes: list[SimpleQueue[Held]] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)
    quiet_failures: list[str] = field(default_factory=list)
    """Out-of-memory errors in finalizers and hooks, which may fail at any time. `append` is atomic."""

    def fail(self, error: BaseException) -> None:
        self.faults.append(error)
        self.stop.set()


class Held:
    """A live tensor, filled with a value of its own, and its booking."""

    def __init__(self, world: World, device: int, nbytes: int, value: int) -> None:
        """The memory is booked already."""
        self.ledger = world.ledgers[device]
        self.nbytes = nbytes
        self.value = value
        self.tensor = torch.full((nbytes,), value, dtype=torch.uint8, device=f"spyre:{device}")

    def check(self) -> None:
        content = self.tensor.cpu()
        if not bool((content == self.value).all()):
            wrong = int((content != self.value).sum())
            raise Fault(f"{wrong} of {self.nbytes} bytes of a tensor were written by somebody else")

    def give_up(self) -> None:
        """Checks the content, frees the tensor and ends the booking."""
        self.check()
        del self.tensor
        self.ledger.release(self.nbytes)


class Thread(threading.Thread):
    """A thread of the soak: repeats `step` until the end, and says that it is alive by counting."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(name=name)
        self.world = world
        self.random = Random(f"{world.seed}/{name}")
        self.done: Counter[str] = Counter()
        self.steps = 0
        self.doing = "nothing yet"
        self.longest_seconds = 0.0

    def operations(self) -> dict[Callable[[], object], float]:
        """What a step may be, with weights."""
        raise NotImplementedError

    def finish(self) -> None:
        """Gives up what the thread holds."""

    def run(self) -> None:
        try:
            weighted = self.operations()
            names, weights = list(weighted), list(weighted.values())
            while not self.world.stop.is_set():
                (operation,) = self.random.choices(names, weights)
                self.step(operation)
            self.doing = "finishing"
            self.finish()
        except BaseException as error:
            self.world.fail(error)

    def step(self, operation: Callable[[], object]) -> None:
        """One operation. Running out of memory is a fault unless it was provoked."""
        self.doing = operation.__name__
        mark, began = self.world.provocations.now(), time.monotonic()
        try:
            operation()
        except torch.OutOfMemoryError as error:
            self.out_of_memory(str(error), mark)
        self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
        self.done[self.doing] += 1
        self.steps += 1

    def out_of_memory(self, text: str, mark: int) -> None:
        """Counts a failure, and says whether it is one of the allocator."""
        self.done["out of memory"] += 1
        if not self.world.provocations.excuse(mark):
            booked = [ledger.booked_bytes for ledger in self.world.ledgers]
            census = [_C.testing.census(device) for device in range(DEVICES)]
            raise Fault(f"{self.name}, {self.doing}: {text} Live memory: {booked} bytes. {census}")
