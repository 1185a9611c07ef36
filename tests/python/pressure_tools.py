"""What the pressure scenarios share: garbage, a full device, counters, threads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import torch

from conftest import FREE_THREADED
from torch_spyre import _C

KIB = 1 << 10
MIB = 1 << 20

testing = _C.testing

# ---- what is different without a GIL

YOUNG = 0 if FREE_THREADED else 1
"""Young collections of a request that reaches the full one: a free-threaded CPython has no generations."""

OVERDUE_COLLECTION_GOES_ON = FREE_THREADED
"""Whether a collection has begun while another thread stays in C with the interpreter held.

Without a GIL it has: it waits for that thread, and goes on when the thread returns, for nobody any more. With one it
has not, and is cancelled.
"""

ROUNDS = 10 if FREE_THREADED else 100
"""How often the long stress tests go round: without young collections a round takes five times as long."""


class Node:
    """A dead cycle as soon as it is dropped."""

    tensor: torch.Tensor

    def __init__(self) -> None:
        self.me = self


memory = torch.spyre.memory
"""`torch.spyre.memory`, which PyTorch's own annotations do not know."""


def block(nbytes: int = MIB) -> torch.Tensor:
    """Device memory of `nbytes` bytes."""
    return torch.empty(nbytes, dtype=torch.uint8, device="spyre")


def make_garbage(nbytes: int = MIB) -> None:
    """A dead cycle that holds `nbytes` bytes of device memory."""
    node = Node()
    node.tensor = block(nbytes)


def free_bytes() -> int:
    """Free memory of the current device."""
    free, _ = _C.mem_get_info(0)
    return free


def fill_with_garbage(nbytes: int = MIB) -> None:
    """Fills the device with dead cycles, without reaching exhaustion."""
    gc.collect()
    while free_bytes() >= nbytes:
        make_garbage(nbytes)


class Counters:
    """Pressure statistics since the object was made, by key: `counters["events"]`."""

    def __init__(self) -> None:
        self.start = _C.pressure_stats(0)

    def __getitem__(self, key: str) -> int:
        return _C.pressure_stats(0)[key] - self.start[key]

    def collections(self) -> int:
        """Collections of both kinds."""
        return self["collections.young"] + self["collections.full"]

    def check_all_rescued(self) -> None:
        """Pressure really happened, and every request was served."""
        assert self["events"] > 0
        assert self["rescued"] == self["events"]
        assert self["failed"] == 0
        testing.validate(0)


def run_threads(count: int, work: Callable[[], object]) -> None:
    """Runs `work` on `count` threads that start together; raises what any of them raised."""
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            barrier.wait()
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def repeat(count: int, step: Callable[[], object]) -> None:
    """Calls `step` so many times."""
    for _ in range(count):
        step()


class Background:
    """Runs `step` again and again on a thread of its own, inside a `with` block; raises what it raised."""

    def __init__(self, step: Callable[[], object]) -> None:
        self.step = step
        self.steps = 0
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.step()
                self.steps += 1
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Background:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()
        if self.error is not None:
            raise self.error
