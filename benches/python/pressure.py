"""Measure what a rescue costs, over a plain collection and beside collecting and trying again once.

Both sides of a ratio run in this process, turn by turn, after warm passes, with 10,000 to 1,000,000 live Python
objects. Puts the ratios of the last into target/bench/summary.json; lower is better.

    pressure.young_over_full           an allocation rescued by a young collection, over a full one
    pressure.old_over_collect          an allocation rescued by collecting garbage in the oldest generation, over
                                       one gc.collect() of the same garbage
    pressure.threads8_full_collections full collections when eight threads are exhausted at once; the peer, in the
                                       table only, is `except OutOfMemoryError: gc.collect()` and one more try
    pressure.growth_over_unregistered  allocations that fit, with a pressure callback over without one
"""

import gc
import os
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

os.environ["TORCH_SPYRE_ALLOC_CONF"] = "device_memory:256MiB"

import torch

from measure import Measurement, print_heading, ratio, seconds_per_call, write_summary
from torch_spyre import flex

LIVE_OBJECTS = (10_000, 100_000, 1_000_000)
GARBAGE_BYTES = 200 << 20
THREADS = 8
SHARE_BYTES = 28 << 20
THREAD_ROUNDS = 7


class Owner:
    """A dead cycle as soon as it is dropped."""

    def __init__(self, nbytes: int) -> None:
        self.itself = self
        self.tensor = allocate(nbytes)


def allocate(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="spyre")


def leave_garbage(*, old: bool) -> None:
    """Leave a dead cycle, young or in the oldest generation, that holds most of the device."""
    owner = Owner(GARBAGE_BYTES)
    if old:
        gc.collect()  # While the owner lives: it ages to the oldest generation.
    del owner


def rescue(*, old: bool) -> Measurement:
    def measure() -> float:
        gc.collect()
        leave_garbage(old=old)
        before = torch.spyre.memory.pressure_stats()
        started = time.perf_counter()
        allocate(GARBAGE_BYTES)
        elapsed = time.perf_counter() - started
        after = torch.spyre.memory.pressure_stats()
        fulls = after["collections.full"] - before["collections.full"]
        if after["rescued"] != before["rescued"] + 1 or (fulls > 0) != old:
            raise AssertionError(f"not the rescue that was to be measured: {fulls} full collections")
        return elapsed

    return measure


def plain_collect(*, old: bool) -> Measurement:
    def measure() -> float:
        gc.collect()
        leave_garbage(old=old)
        started = time.perf_counter()
        gc.collect()
        elapsed = time.perf_counter() - started
        if torch.spyre.memory_allocated() >= GARBAGE_BYTES:
            raise AssertionError("gc.collect() did not free the garbage: nothing was measured")
        return elapsed

    return measure


def collect_and_retry(nbytes: int) -> torch.Tensor:
    """What other libraries do."""
    try:
        return allocate(nbytes)
    except torch.OutOfMemoryError:
        gc.collect()
    return allocate(nbytes)


def exhaust_together(take: Callable[[int], torch.Tensor]) -> int:
    """Lets eight threads, each with old garbage of its own, allocate at once; returns how many failed."""
    gc.collect()
    owners = [Owner(SHARE_BYTES) for _ in range(THREADS)]
    gc.collect()
    owners.clear()
    barrier, failed, kept = threading.Barrier(THREADS), [], []

    def run() -> None:
        barrier.wait()
        try:
            kept.append(take(SHARE_BYTES))
        except torch.OutOfMemoryError:
            failed.append(threading.get_ident())

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(kept) + len(failed) != THREADS:
        raise AssertionError("a thread neither got its memory nor failed")
    return len(failed)


def full_collections_of_eight_threads() -> float:
    """The median of full collections; all requests are rescued."""
    counts = []
    for _ in range(THREAD_ROUNDS):
        before = torch.spyre.memory.pressure_stats()
        failed = exhaust_together(allocate)
        after = torch.spyre.memory.pressure_stats()
        if failed or after["rescued"] == before["rescued"]:
            raise AssertionError(f"{failed} of {THREADS} threads failed: {after}")
        counts.append(after["collections.full"] - before["collections.full"])
    torch.spyre.memory.set_pressure_policy(gc="off")
    failures = [exhaust_together(collect_and_retry) for _ in range(THREAD_ROUNDS)]
    torch.spyre.memory.set_pressure_policy(gc="always")
    print(f"eight threads exhausted at once: {counts} full collections, none failed; collecting and trying again once:")
    print(f"    of {THREADS} threads failed {failures}")
    return statistics.median(counts)


def growth(*, registered: bool) -> Measurement:
    allocator = flex.FlexAllocator.simulated(64 << 20)
    if registered:
        allocator.set_memory_pressure_callback(lambda _request: None)
    return seconds_per_call(lambda: allocator.allocate(4096), 10_000)


def main() -> None:
    torch.set_num_threads(1)
    gc.disable()
    print_heading()
    ratios: dict[str, float] = {}
    for count in LIVE_OBJECTS:
        live: list[list[Any]] = [[] for _ in range(count)]
        young = ratio(f"young garbage, {count:,} objects", rescue(old=False), plain_collect(old=False))
        old = ratio(f"old garbage, {count:,} objects", rescue(old=True), plain_collect(old=True))
        ratios |= {"pressure.young_over_full": young, "pressure.old_over_collect": old}
        del live
    ratios["pressure.threads8_full_collections"] = full_collections_of_eight_threads()
    name = "pressure.growth_over_unregistered"
    ratios[name] = ratio("growth, callback registered", growth(registered=True), growth(registered=False))
    write_summary(ratios)


if __name__ == "__main__":
    main()
