"""The arguments of `planned`, checked: what makes a collection due."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from torch_spyre._arguments import checked_bool, checked_int


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
        checked_int("warmup_steps", warmup_steps, "a number of steps", 0)
        checked_bool("freeze", freeze)
        for name, value in (("young_bytes", young_bytes), ("full_bytes", full_bytes)):
            if value is not None:
                checked_int(name, value, "bytes", 1)
        checked_int("young_objects", young_objects, "a number of objects", 1)
        if full_objects is None:
            full_objects = young_objects * FULL_OVER_YOUNG_OBJECTS
        checked_int("full_objects", full_objects, "a number of objects", 1)
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


def checked_order(unit: str, young: int | None, full: int | None) -> None:
    """Refuses a limit for full collections below the one for young ones, which then would never be reached."""
    if young is not None and full is not None and full < young:
        raise ValueError(f"full_{unit}={full} is below young_{unit}={young}; expected at least as much")
