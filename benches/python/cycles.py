"""What recording cycles costs: a collection of so many dead cycles, plain and recorded, and the search for dead cycles.

Processor time of the thread, the best of three.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable

os.environ["TORCH_SPYRE_ALLOC_CONF"] = "device_memory:256MiB"

import torch

from torch_spyre._cycles import dead_bytes

ROUNDS = 3


class Plain:
    """A dead cycle as soon as it is dropped."""

    def __init__(self) -> None:
        self.me = self


class Holding(Plain):
    """One that holds device memory."""

    def __init__(self) -> None:
        super().__init__()
        self.tensor = torch.empty(1024, dtype=torch.uint8, device="spyre")


def milliseconds(work: Callable[[], object]) -> float:
    """The processor time that `work` takes."""
    began = time.thread_time()
    work()
    return (time.thread_time() - began) * 1000


def collection(kind: type[Plain], count: int, *, recorded: bool) -> float:
    """The time of a collection that finds so many."""

    def once() -> float:
        gc.collect()
        for _ in range(count):
            kind()
        return milliseconds(gc.collect)

    torch.spyre.memory.record_cycles(recorded, warn_bytes=1 << 40 if recorded else None)
    return min(once() for _ in range(ROUNDS))


gc.disable()
for kind, what in ((Plain, "without tensors"), (Holding, "with a tensor each")):
    for count in (0, 1000, 10_000):
        plain, recorded = (collection(kind, count, recorded=recorded) for recorded in (False, True))
        print(f"{count:>6} dead cycles {what:<18} collected in {plain:6.1f} ms, recorded in {recorded:6.1f} ms")
gc.collect()
torch.spyre.memory.record_cycles(False)
search = min(milliseconds(dead_bytes) for _ in range(ROUNDS))
objects = len(gc.get_objects())
print(f"{objects:>6} live objects: collected in {milliseconds(gc.collect):.1f} ms, searched in {search:.1f} ms")
