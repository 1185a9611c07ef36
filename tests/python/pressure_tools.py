"""What the pressure scenarios share: garbage, a full device, counters, threads, paused collections."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from conftest import FREE_THREADED
from torch_spyre import _C

KIB = 1 << 10
MIB = 1 << 20

testing = _C.testing

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


def expected_young() -> int:
    """Young collections of a request that none rescues."""
    return 0 if FREE_THREADED else 1


def free_bytes() -> int:
    """Free memory of the current device."""
    free, _ = _C.mem_get_info(0)
    return free


def fits(nbytes: int) -> bool:
    """Whether the device has room for a block of so many bytes, so that it causes no pressure."""
    return testing.largest_free_bytes(0) >= nbytes


def fill(live: list[torch.Tensor]) -> None:
    """Fills the device with live tensors of 1 MiB, without reaching exhaustion."""
    while fits(MIB):
        live.append(block())


def fill_with_garbage(nbytes: int = MIB) -> None:
    """Fills the device with dead cycles, without reaching exhaustion."""
    gc.collect()
    while fits(nbytes):
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

    def check_balanced(self) -> None:
        """Every request under pressure ended, rescued or failed."""
        assert self["events"] > 0
        assert self["rescued"] + self["failed"] == self["events"]
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


@contextmanager
def another_thread() -> Iterator[None]:
    """Another Python thread, which does nothing: a request that arrives detached is not alone any more, and the
    collector thread collects for it."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def running(work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Runs `work` on a thread beside the body; at the end waits for it and raises what it raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()
    if errors:
        raise errors[0]


Place = Literal["finalizer", "before", "after"]


class PausedCollection:
    """A collection of the program's own on a thread of its own, paused until `resume`: in a finalizer, or in an entry
    of `gc.callbacks` before or after the allocator's, as it starts or stops."""

    def __init__(self, place: Place, phase: str = "start") -> None:
        self.place = place
        self.phase = phase
        self.paused = threading.Event()
        self.resumed = threading.Event()
        self.thread = threading.Thread(target=self.collect)

    def pause(self) -> None:
        if threading.current_thread() is self.thread and not self.paused.is_set():
            self.paused.set()
            self.resumed.wait()

    def callback(self, phase: str, _info: object) -> None:
        if phase == self.phase:
            self.pause()

    def collect(self) -> None:
        if self.place == "finalizer":
            pause = self.pause

            class Pausing(Node):
                def __del__(self) -> None:
                    pause()

            Pausing()
        gc.collect()

    def resume(self) -> None:
        self.resumed.set()

    def __enter__(self) -> PausedCollection:
        if self.place == "before":
            gc.callbacks.insert(0, self.callback)
        elif self.place == "after":
            gc.callbacks.append(self.callback)
        self.thread.start()
        self.paused.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.resume()
        self.thread.join()
        if self.callback in gc.callbacks:
            gc.callbacks.remove(self.callback)


def fork() -> int:
    """`os.fork`, which warns from 3.12 on when the process has threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def exit_status(child: int) -> int:
    """How a child ended: its exit status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Background:
    """Runs `step` again and again on a thread of its own, from before a `with` block on; raises what it raised."""

    def __init__(self, step: Callable[[], object]) -> None:
        self.step = step
        self.steps = 0
        self.error: BaseException | None = None
        self.stepped = threading.Event()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.step()
                self.steps += 1
                self.stepped.set()
        except BaseException as error:
            self.error = error
        finally:
            self.stepped.set()

    def __enter__(self) -> Background:
        self.thread.start()
        self.stepped.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()
        if self.error is not None:
            raise self.error
