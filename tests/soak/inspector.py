"""The thread that looks on: every invariant of the allocators, and what the statistics must satisfy at any time."""

from __future__ import annotations

from collections.abc import Callable

from world import DEVICE_BYTES, DEVICES, Fault, Thread, World

from torch_spyre import _C

MOST_REQUESTS = 64
"""No more can be under way at once: every thread, and each native thread it starts."""


def check(holds: bool, what: str, figures: object) -> None:
    if not holds:
        raise Fault(f"{what}: {figures}")


def check_memory(device: int) -> dict[str, int]:
    """One snapshot of a device: exact whatever else runs."""
    stats = _C.memory_stats(device)
    current = {name: stats[f"{name}.all.current"] for name in KINDS}
    for name in KINDS:
        balance = stats[f"{name}.all.allocated"] - stats[f"{name}.all.freed"]
        check(balance == current[name], f"{name}: current is allocated less freed", stats)
        check(current[name] <= stats[f"{name}.all.peak"], f"{name}: current is at most the peak", stats)
    check(current["allocated_bytes"] == current["active_bytes"], "there is no cache: allocated is active", stats)
    check(current["requested_bytes"] <= current["allocated_bytes"], "sizes are rounded up", stats)
    check(current["allocated_bytes"] <= current["reserved_bytes"] <= DEVICE_BYTES, "all lies in regions", stats)
    return stats


KINDS = ("allocated_bytes", "requested_bytes", "active_bytes", "reserved_bytes", "allocation", "active", "segment")


class Inspector(Thread):
    """Looks at everything, all the time."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "inspector")
        self.last = [_C.pressure_stats(device) for device in range(DEVICES)]

    def operations(self) -> dict[Callable[[], object], float]:
        return {self.validate: 1, self.read_memory_stats: 1, self.read_pressure_stats: 2}

    def each_device(self, look: Callable[[int], object]) -> None:
        for device in range(DEVICES):
            look(device)
        self.world.stop.wait(0.002)

    def validate(self) -> None:
        self.each_device(_C.testing.validate)

    def read_memory_stats(self) -> None:
        self.each_device(check_memory)

    def read_pressure_stats(self) -> None:
        self.each_device(self.check_pressure)

    def check_pressure(self, device: int) -> None:
        """The counters are read one after the other: those of a later reading are at least those of an earlier one."""
        before, earlier, later = self.last[device], _C.pressure_stats(device), _C.pressure_stats(device)
        for key, value in later.items():
            check(before[key] <= earlier[key] <= value, f"{key} never falls", (before, earlier, later))
        ended = earlier["rescued"] + earlier["failed"]
        check(later["events"] >= ended, "only what began ends", (earlier, later))
        under_way = earlier["events"] - later["rescued"] - later["failed"]
        check(under_way <= MOST_REQUESTS, "events are rescued, failed or under way", (earlier, later))
        check(later["coalesced"] <= later["rescued"] + MOST_REQUESTS, "coalesced is part of rescued", later)
        census = _C.testing.census(device)
        check(census["registered_requests"] <= MOST_REQUESTS, "requests register once", census)
        check(max(census["flights"], census["hook_runs"]) <= 1, "one collection, one run of hooks at a time", census)
        self.last[device] = later
