"""What live tracebacks hold of a device's memory: found in the graph of Python objects, without freeing anything.

A frame that has ended stays as long as a traceback refers to it, with all its local variables. Trial deletion, as the
collector does it, says what would be free without those frames: of all objects that can be reached from them, those
that nobody else refers to. No code of the objects' classes runs, and no reference is left behind.
"""

from __future__ import annotations

import gc
import sys
import time
import types
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torch_spyre._cycles import human, sayable, storage_of
from torch_spyre._lifecycle import core

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_OBJECTS = 100_000
"""More are not looked at: what lies beyond counts as held by others."""

_LOOK = 256
"""How often the clock is looked at, in objects."""

_SHARED = (
    *(types.ModuleType, types.CodeType, types.BuiltinFunctionType, types.TracebackType, types.FrameType),
    *(str, bytes, int, float, bool, type(None), torch.dtype, torch.device),
)
"""Nobody's own, or of no consequence: not looked into."""

_FUNCTION_PARTS = ("__closure__", "__defaults__", "__kwdefaults__", "__dict__")

_TORCH: Any = torch._C  # Its stubs leave out what is used of it here.


@dataclass(frozen=True)
class TracebackHolding:
    """Device memory that only a frame in a live traceback holds: `nbytes` in the locals of function `name`, which
    ended at `filename`:`line`."""

    nbytes: int
    filename: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{human(self.nbytes)} in the locals of {self.name} ({self.filename}:{self.line})"


def install() -> None:
    """Tells the extension whom to ask when a request fails."""
    core().set_traceback_finder(hint)


def hint(device: int, timeout_s: float) -> tuple[str | None, bool]:
    """A sentence about what only tracebacks hold of a device, and whether all of it is known."""
    holdings, complete = traceback_holdings(device, timeout_s)
    total = sum(each.nbytes for each in holdings)
    if total == 0:
        return None, complete
    at_least = "" if complete else "at least "
    text = f"A live traceback holds {at_least}{human(total)}: {holdings[0]}; it is free when the exception is."
    return sayable(text), True


def traceback_holdings(device: int, timeout_s: float) -> tuple[list[TracebackHolding], bool]:
    """What only live tracebacks hold of a device, the largest first, and whether all was looked at in time."""
    search = _Search(time.monotonic() + timeout_s)
    frames = _ended_frames()
    if not frames:
        return [], True
    for number, (frame, _) in enumerate(frames):
        search.look_into(frame, number)
    search.run()
    nbytes = search.device_bytes(core().live_blocks(device))
    holdings = [
        TracebackHolding(
            size, frames[number][0].f_code.co_filename, frames[number][1], frames[number][0].f_code.co_name
        )
        for number, size in nbytes.most_common()
    ]
    return holdings, search.complete


def _ended_frames() -> list[tuple[types.FrameType, int]]:
    """The frames of all tracebacks that have ended but still hold something, with the line that each ended at.

    A frame that runs, or a generator that waits, shows the collector nothing.
    """
    found: dict[int, tuple[types.FrameType, int]] = {}
    for thing in gc.get_objects():
        if type(thing) is types.TracebackType:
            frame = thing.tb_frame
            if id(frame) not in found and gc.get_referents(frame):
                found[id(frame)] = (frame, thing.tb_lineno)
    return list(found.values())


class _Search:
    """The objects that can be reached from some frames, with the references among them."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.complete = True
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.origins: list[int] = []
        self.internal: list[int] = []
        self.edges: list[list[int]] = []
        self.globals = {id(vars(module)) for module in list(sys.modules.values()) if type(module) is types.ModuleType}

    def look_into(self, thing: Any, origin: int) -> list[int]:
        """Notes what an object refers to; returns the numbers of those objects."""
        targets = []
        for target in _referents(thing):
            kind = type(target)
            if kind in _SHARED or issubclass(kind, type) or id(target) in self.globals:
                continue
            number = self.numbers.setdefault(id(target), len(self.objects))
            if number == len(self.objects):
                self.objects.append(target)
                self.origins.append(origin)
                self.internal.append(0)
            self.internal[number] += 1
            targets.append(number)
        return targets

    def run(self) -> None:
        """Looks into all objects, as far as there is time."""
        while len(self.edges) < len(self.objects):
            number = len(self.edges)
            if number >= MOST_OBJECTS or (number % _LOOK == 0 and time.monotonic() > self.deadline):
                self.complete = False
                break
            self.edges.append(self.look_into(self.objects[number], self.origins[number]))
        self.edges += [[]] * (len(self.objects) - len(self.edges))

    def own(self) -> list[bool]:
        """Which objects nothing else leads to."""
        # Both counts are taken of an item of a list, with no other reference of ours.
        calibration = [object()]
        ours = sys.getrefcount(calibration[0])
        own = [True] * len(self.objects)
        queue = []
        for number in range(len(self.objects)):
            if sys.getrefcount(self.objects[number]) - ours > self.internal[number]:
                queue.append(number)
                own[number] = False
        while queue:
            for target in self.edges[queue.pop()]:
                if own[target]:
                    own[target] = False
                    queue.append(target)
        return own

    def device_bytes(self, sizes: Mapping[int, int]) -> Counter[int]:
        """The device memory of those objects, by the frame it was found from. `sizes` are by address."""
        uses: Counter[int] = Counter()
        found: dict[int, tuple[int, int]] = {}
        for number, is_own in enumerate(self.own()):
            thing = self.objects[number]
            if is_own and torch._C.TensorBase in type(thing).__mro__:
                storage = storage_of(thing)
                if storage is not None:
                    uses[storage[0]] += 1
                    found.setdefault(storage[0], (storage[1], self.origins[number]))
        nbytes: Counter[int] = Counter()
        for implementation, (address, origin) in found.items():
            if _TORCH._storage_Use_Count(implementation) <= uses[implementation]:
                nbytes[origin] += sizes.get(address, 0)
        return nbytes


def _referents(thing: Any) -> list[Any]:
    if type(thing) is types.FunctionType:  # Not its globals, which are its module's.
        return [part for part in (getattr(thing, name) for name in _FUNCTION_PARTS) if part]
    return gc.get_referents(thing)
