"""The arguments of `planned`, checked: what makes a collection due."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Generation(IntEnum):
    """What to collect. Ranks agree on the largest that one of them asks for."""

    NONE = 0
    """Nothing."""
    YOUNG = 1
    """The young generations, as `gc.collect(1)`."""
    FULL = 2
    """Everything, as `gc.collect()`."""


FULL_OVER_YOUNG_BYTES = 4
FULL_OVER_YOUNG_OBJECTS = 10
"""What a limit for full collections is, over the one for young collections, if it is not given."""


@dataclass(frozen=True)
class Limits:
    """See `planned`. `young_bytes` and `full_bytes` may be None until the size of the device is known."""

    warmup_steps: int
    freeze: bool
    young_bytes: int | None
    full_bytes: int | None
    young_objects: int
    full_objects: int
    time_share: float

    @staticmethod
    def checked(
        *,
        warmup_steps: int,
        freeze: bool,
        young_bytes: int | None,
        full_bytes: int | None,
        young_objects: int,
        full_objects: int | None,
        time_share: float,
    ) -> Limits:
        """Raises TypeError or ValueError, naming the argument, its value and what was expected."""
        checked_int("warmup_steps", warmup_steps, 0, "a number of steps")
        checked_bool("freeze", freeze)
        for name, value in (("young_bytes", young_bytes), ("full_bytes", full_bytes)):
            if value is not None:
                checked_int(name, value, 1, "bytes")
        checked_int("young_objects", young_objects, 1, "a number of objects")
        if full_objects is None:
            full_objects = young_objects * FULL_OVER_YOUNG_OBJECTS
        checked_int("full_objects", full_objects, 1, "a number of objects")
        if isinstance(time_share, bool) or not isinstance(time_share, (int, float)):
            raise TypeError(f"time_share={time_share!r} is not a number; expected a share, above 0 and at most 1")
        if not 0 < time_share <= 1:
            raise ValueError(f"time_share={time_share} is out of range; expected a share, above 0 and at most 1")
        checked_order("bytes", young_bytes, full_bytes)
        checked_order("objects", young_objects, full_objects)
        return Limits(warmup_steps, freeze, young_bytes, full_bytes, young_objects, full_objects, float(time_share))

    def resolved_bytes(self, capacity_bytes: int) -> tuple[int, int]:
        """`young_bytes` and `full_bytes` on a device of that size."""
        young, full = self.young_bytes, self.full_bytes
        if young is None:
            young = max(1, capacity_bytes // 16)
            young = young if full is None else min(young, full)
        return young, young * FULL_OVER_YOUNG_BYTES if full is None else full


def checked_int(name: str, value: Any, least: int, what: str) -> None:
    """Refuses what is no int, or below `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} is not an int; expected {what}, at least {least}")
    if value < least:
        raise ValueError(f"{name}={value} is out of range; expected {what}, at least {least}")


def checked_bool(name: str, value: Any) -> None:
    """Refuses what is no bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is not a bool; expected True or False")


def checked_order(unit: str, young: int | None, full: int | None) -> None:
    """Refuses a limit for full collections below the one for young ones, which then would never be reached."""
    if young is not None and full is not None and full < young:
        raise ValueError(f"full_{unit}={full} is below young_{unit}={young}; expected at least as much")
