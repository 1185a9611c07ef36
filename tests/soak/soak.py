"""A soak: many threads do everything at once for a while, and nothing may be lost, hang, or fail without cause.

    make soak SECONDS=600 SEED=7        (or directly, with the package and its extension on PYTHONPATH)

Every operation of every thread is drawn from a generator seeded with SEED and the thread's name, so a seed repeats what
is done, as far as threads can be repeated. The allocators' invariants are checked throughout, the content of tensors
when they are freed, and at the end that everything balances to zero. A thread that makes no progress for a while ends
the process with the stacks of all threads. The last line of output is a summary in JSON.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import random
import sys
import time
from collections import Counter
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from world import Thread, World

WORKERS = 8
FLEX_USERS = 2

STALL_SECONDS = 90
"""A thread whose operation takes longer has hung. Deadlines of requests (`world.TIMEOUTS_MS`) are shorter."""

SWITCH_SECONDS = 0.0005
"""Threads take turns more often than by default: more interleavings."""

SETTLE_SECONDS = 20
"""What is under way when the threads have ended must end by itself within this time."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Many threads, everything at once.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    return parser.parse_args()


def import_torch() -> None:
    """Two small devices. Read when torch is imported."""
    os.environ["TORCH_SPYRE_ALLOC_CONF"] = "devices:2,device_memory:24MiB"
    import torch_spyre

    print(f"python {sys.version.split()[0]}, {torch_spyre.__file__}", flush=True)


class Soak:
    """One run."""

    def __init__(self, seed: int) -> None:
        from disturbers import Collector, Governor
        from inspector import Inspector
        from workers import FlexUser, Worker
        from world import World

        from torch_spyre import flex

        self.world: World = World(seed)
        self.world.inboxes.extend(SimpleQueue() for _ in range(WORKERS))
        self.allocator = flex.FlexAllocator.simulated(FlexUser.CAPACITY_BYTES)
        self.threads: list[Thread] = [
            *(Worker(self.world, number) for number in range(WORKERS)),
            *(FlexUser(self.world, number, self.allocator) for number in range(FLEX_USERS)),
            Collector(self.world),
            Governor(self.world),
            Inspector(self.world),
        ]
        sys.unraisablehook = self.unraisable

    def unraisable(self, report: Any) -> None:
        """What finalizers and hooks raise on purpose is fine; anything else is not."""
        from garbage import ExpectedError

        if not isinstance(report.exc_value, ExpectedError):
            self.world.fail(report.exc_value)

    def run(self, seconds: float) -> None:
        from disturbers import freeze_live

        sys.setswitchinterval(SWITCH_SECONDS)
        freeze_live(self.world)
        for thread in self.threads:
            thread.start()
        self.watch(time.monotonic() + seconds)
        self.world.stop.set()
        self.watch(None)

    def watch(self, end: float | None) -> None:
        """Until `end`, or until all threads have ended, looks whether every thread makes progress."""
        now = time.monotonic()
        seen = {thread: (thread.steps, now) for thread in self.threads}
        while end is None or now < end:
            # For a hang of the interpreter itself, in which this thread does not run.
            faulthandler.dump_traceback_later(2 * STALL_SECONDS, exit=True, file=sys.__stderr__ or 2)
            running = [thread for thread in self.threads if thread.is_alive()]
            if not running or (end is not None and self.world.stop.is_set()):
                return
            time.sleep(0.1)
            now = time.monotonic()
            for thread in running:
                steps, since = seen[thread]
                if thread.steps != steps:
                    seen[thread] = (thread.steps, now)
                elif now - since > STALL_SECONDS:
                    self.hang(thread)

    def hang(self, thread: Thread) -> NoReturn:
        text = f"SEED={self.world.seed}: {thread.name} has not moved for {STALL_SECONDS} s, in {thread.doing}"
        print(text, file=sys.__stderr__, flush=True)
        faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
        os._exit(3)

    def settle(self) -> None:
        """Releases the rest, and waits until nothing is under way."""
        from garbage import GARBAGE_LAYERS
        from world import DEVICES

        from torch_spyre import _C

        for inbox in self.world.inboxes:
            while not inbox.empty():
                inbox.get().give_up()
        gc.unfreeze()
        gc.enable()
        end = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < end:
            for _ in range(GARBAGE_LAYERS):
                gc.collect()
            census = [_C.testing.census(device) for device in range(DEVICES)]
            if not any(any(counts.values()) for counts in census):
                return
            time.sleep(0.05)

    def check_the_end(self) -> None:
        """Nothing is left, and every failure of the allocators was one that somebody got."""
        from inspector import check, check_memory
        from world import DEVICES

        from torch_spyre import _C

        failed = 0
        for device in range(DEVICES):
            _C.testing.validate(device)
            stats, pressure, census = check_memory(device), _C.pressure_stats(device), _C.testing.census(device)
            left = {key: value for key, value in census.items() if value}
            check(not left, "nothing is under way", left)
            for name in ("allocated_bytes", "requested_bytes", "allocation", "active"):
                check(stats[f"{name}.all.current"] == 0, f"{name} is 0", stats)
            check(pressure["events"] == pressure["rescued"] + pressure["failed"], "every event has ended", pressure)
            check(pressure["failed"] == stats["num_ooms"], "every failure is an out-of-memory error", pressure)
            check(pressure["rescued"] > 0, "there was pressure", pressure)
            check(self.world.ledgers[device].booked_bytes == 0, "all bookings have ended", device)
            failed += pressure["failed"]
        got = self.done()["out of memory"] + len(self.world.quiet_failures)
        check(failed == got, "every failure reached the one who asked", {"failed": failed, "got": got})
        self.allocator.validate()
        flex_stats = self.allocator.stats()
        check(flex_stats["allocated_bytes.all.current"] == 0, "the allocator of the core is empty", flex_stats)

    def done(self) -> Counter[str]:
        return sum((thread.done for thread in self.threads), Counter())

    def summary(self, seconds: float) -> dict[str, Any]:
        from world import DEVICES

        from torch_spyre import _C

        return {
            "seed": self.world.seed,
            "seconds": round(seconds, 1),
            "python": sys.version.split()[0],
            "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
            "operations": dict(sorted(self.done().items())),
            "failures_in_finalizers_and_hooks": len(self.world.quiet_failures),
            "longest_operation_seconds": {
                thread.name: round(thread.longest_seconds, 3)
                for thread in sorted(self.threads, key=lambda thread: -thread.longest_seconds)[:3]
            },
            "most_live_bytes": [ledger.most_bytes for ledger in self.world.ledgers],
            "pressure": [_C.pressure_stats(device) for device in range(DEVICES)],
            "faults": [f"{type(fault).__name__}: {fault}" for fault in self.world.faults],
        }


def main() -> int:
    given = arguments()
    print(f"SEED={given.seed}", flush=True)
    import_torch()
    began = time.monotonic()
    soak = Soak(given.seed)
    soak.run(given.seconds)
    if not soak.world.faults:
        soak.settle()
        try:
            soak.check_the_end()
        except Exception as fault:
            soak.world.fail(fault)
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps(soak.summary(time.monotonic() - began)), flush=True)
    return 1 if soak.world.faults else 0


if __name__ == "__main__":
    sys.exit(main())
