"""The held report: who holds a device's memory now."""

from __future__ import annotations

from dataclasses import dataclass

from torch_spyre._cycles import human
from torch_spyre._held import TracebackHolding, traceback_holdings
from torch_spyre._index import DeviceLike, existing_index
from torch_spyre._lifecycle import core, lazy_init

_MOST_HOLDERS = 10

_TIMEOUT_S = 10.0

_HOW_TO_RECORD = "not recorded; see torch.spyre.memory._record_memory_history()"


@dataclass(frozen=True)
class Holder:
    """The live memory that one place in the program allocated: the innermost frame of the program itself, or else the
    innermost that is not PyTorch's.
    """

    nbytes: int
    blocks: int
    filename: str
    """Empty if it is not known: memory from before recording began, or of a thread that runs no Python code."""
    line: int
    name: str
    """The function."""

    def __str__(self) -> str:
        where = f"{self.filename}:{self.line} ({self.name})" if self.filename else "an unknown place"
        return f"{human(self.nbytes)} in {self.blocks} {'block' if self.blocks == 1 else 'blocks'} at {where}"


@dataclass(frozen=True)
class HeldReport:
    """Who holds a device's memory at one moment; `str` makes a table of it."""

    device: int
    nbytes: int
    """All live memory."""
    recorded: bool
    """Whether history is recorded, so that holders are known."""
    holders: tuple[Holder, ...]
    """By place, the most memory first."""
    tracebacks: tuple[TracebackHolding, ...]
    """What only frames in live tracebacks hold, by frame, the most first."""
    tracebacks_complete: bool
    """Whether all was looked at. Otherwise tracebacks hold at least that."""
    frozen_bytes: int | None
    """What only garbage holds that `gc.freeze()` keeps from being collected; None if that cannot be told: on a
    free-threaded Python, on one whose collector is not known, and if it takes too long."""

    @property
    def traceback_bytes(self) -> int:
        """What only live tracebacks hold."""
        return sum(each.nbytes for each in self.tracebacks)

    def __str__(self) -> str:
        frozen = "not known" if self.frozen_bytes is None else human(self.frozen_bytes)
        tracebacks = human(self.traceback_bytes)
        if not self.tracebacks_complete:
            tracebacks = f"at least {tracebacks}"
        lines = [
            f"Device memory held, spyre:{self.device}",
            f"  live                  {human(self.nbytes)}",
            f"  by live tracebacks    {tracebacks}",
            *(f"{'':16}{each}" for each in self.tracebacks[:_MOST_HOLDERS]),
            f"  by frozen garbage     {frozen}",
            f"  by place              {'recorded' if self.recorded else _HOW_TO_RECORD}",
        ]
        if self.recorded:
            lines += [f"{'':16}{each}" for each in self.holders[:_MOST_HOLDERS]]
        rest = self.holders[_MOST_HOLDERS:]
        if self.recorded and rest:
            lines.append(f"{'':16}{human(sum(each.nbytes for each in rest))} at {len(rest)} other places")
        return "\n".join(lines)


def held_report(device: DeviceLike = None) -> HeldReport:
    """Who holds the memory of a device now: by place in the program while history is recorded, and in any case what
    only live tracebacks and frozen garbage hold. Nothing is freed. Print the report to read it.

    Takes about as long as a full collection, and at most some seconds.
    """
    lazy_init()
    index = existing_index(device)
    recorded, found = core().live_holders(index)
    holders = tuple(Holder(nbytes, blocks, *(place or ("", 0, ""))) for nbytes, blocks, place in found)
    tracebacks, complete = traceback_holdings(index, _TIMEOUT_S)
    return HeldReport(
        device=index,
        nbytes=sum(each.nbytes for each in holders),
        recorded=recorded,
        holders=holders,
        tracebacks=tuple(tracebacks),
        tracebacks_complete=complete,
        frozen_bytes=core().frozen_garbage_bytes(index, _TIMEOUT_S),
    )
