"""The cycle report: how much device memory collections freed that only dead reference cycles held, and who held it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch_spyre._arguments import checked_bool, checked_int
from torch_spyre._cycles import human, place, shown
from torch_spyre._index import DeviceLike, existing_index
from torch_spyre._libraries import Frame
from torch_spyre._lifecycle import core, lazy_init

_MOST_TYPES = 10
_MOST_SITES = 10

_HOW_TO_RECORD = "not recorded; see torch.spyre.memory.record_cycles()"
_HOW_TO_KNOW_SITES = "not recorded; see torch.spyre.memory._record_memory_history()"


@dataclass(frozen=True)
class CycleSite:
    """A place where memory was allocated that collections freed."""

    frames: tuple[Frame, ...]
    """The Python stack, innermost first: file, line and function of each frame."""
    freed_bytes: int
    freed_blocks: int

    def __str__(self) -> str:
        return place(self.frames)


@dataclass(frozen=True)
class CycleHolder:
    """A type of object on dead cycles that held memory, one for each cycle: the program's own, if there is any."""

    name: str
    """The class with its module, or `function NAME`."""
    freed_bytes: int
    freed_blocks: int
    native_bytes: int
    """Of `freed_bytes`, what only C++ objects referred to, such as the graph of autograd."""
    cycles: int
    """The cycles that held it."""
    path: str
    """A way around the first of them, such as `Trainer.callbacks[0] → Logger.trainer → Trainer`; may be empty."""
    filename: str
    """Where the type is defined; may be empty."""
    line: int
    frames: tuple[Frame, ...]
    """Where most of the memory was allocated, as in `CycleSite`; empty unless history is on."""


@dataclass(frozen=True)
class CycleCollection:
    """One collection, as far as it concerns one device."""

    under_pressure: bool
    """The allocator asked for it; else the program did, or Python's automatic collector."""
    generation: int
    objects: int
    """Dead objects found."""
    freed_bytes: int
    freed_blocks: int
    seconds: float
    holders: tuple[CycleHolder, ...] | None
    """Who held what was freed, the most first; None if that was not recorded."""
    sites: tuple[CycleSite, ...]
    """Where what was freed had been allocated, the most first; empty unless history is on."""

    @property
    def other_bytes(self) -> int:
        """Of `freed_bytes`, what no known holder held: objects of C++ did, or finalizers dropped it."""
        return self.freed_bytes - sum(holder.freed_bytes for holder in self.holders or ())


@dataclass(frozen=True)
class CycleReport:
    """What collections freed of a device's memory since the start or the last reset; `str` makes a table of it."""

    device: int
    collections: int
    """Collections under pressure."""
    freed_bytes: int
    """What they freed."""
    freed_blocks: int
    other_collections: int
    """Collections of the program's own, or automatic ones, that freed memory of the device."""
    other_freed_bytes: int
    recorded_bytes: int
    """What all these freed while holders were recorded."""
    holders: tuple[CycleHolder, ...]
    """Who held it, the most first."""
    sites: tuple[CycleSite, ...]
    """Where what was freed had been allocated, the most first; empty unless history is on."""
    recent: tuple[CycleCollection, ...]
    """The last 64 collections, the newest last."""

    @property
    def last(self) -> CycleCollection | None:
        """The last collection under pressure, if it is among the recent ones."""
        return next((each for each in reversed(self.recent) if each.under_pressure), None)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"Device memory held by dead reference cycles only, spyre:{self.device}",
                *self._totals(),
                *self._types(),
                *self._sites(),
            ]
        )

    def _totals(self) -> list[str]:
        lines = [f"  pressure collections  {human(self.freed_bytes)} freed by {self.collections}"]
        if self.other_collections:
            lines.append(f"  other collections     {human(self.other_freed_bytes)} freed by {self.other_collections}")
        if self.last is not None:
            last = self.last
            what = f"generation {last.generation}, {last.objects} objects, {last.seconds * 1000:.1f} ms"
            lines.append(f"  the last one          {human(last.freed_bytes)} freed ({what})")
        return lines

    def _types(self) -> list[str]:
        if not self.recorded_bytes:
            return [f"  held by               {_HOW_TO_RECORD}"]
        lines = [f"  held by               {human(self.recorded_bytes)} recorded"]
        for holder in self.holders[:_MOST_TYPES]:
            count = "1 cycle" if holder.cycles == 1 else f"{holder.cycles} cycles"
            lines.append(f"  {human(holder.freed_bytes):>12}  {holder.name}, {count}")
            if holder.native_bytes:
                what = "only C++ objects referred to, such as autograd graphs"
                lines.append(f"{'':16}of these {human(holder.native_bytes)} {what}")
            if holder.path:
                lines.append(f"{'':16}{holder.path}")
            if holder.filename:
                lines.append(f"{'':16}{shown(holder.filename, holder.line)}")
            if holder.frames:
                lines.append(f"{'':16}allocated at {place(holder.frames)}")
        rest = self.holders[_MOST_TYPES:]
        if rest:
            lines.append(f"  {human(sum(each.freed_bytes for each in rest)):>12}  {len(rest)} other types")
        other = self.recorded_bytes - sum(each.freed_bytes for each in self.holders)
        if other > 0:
            lines.append(f"  {human(other):>12}  other objects of C++, or dropped by finalizers")
        return lines

    def _sites(self) -> list[str]:
        if not self.sites:
            return (
                [f"  allocated at          {_HOW_TO_KNOW_SITES}"] if self.freed_bytes + self.other_freed_bytes else []
            )
        places: Counter[str] = Counter()  # Several stacks may come from one line of the program.
        for site in self.sites:
            places[str(site)] += site.freed_bytes
        shown_places = places.most_common(_MOST_SITES)
        lines = ["  allocated at", *(f"  {human(nbytes):>12}  {name}" for name, nbytes in shown_places)]
        if len(places) > _MOST_SITES:
            rest = places.total() - sum(nbytes for _, nbytes in shown_places)
            lines.append(f"  {human(rest):>12}  {len(places) - _MOST_SITES} other places")
        return lines


def cycle_report(device: DeviceLike = None) -> CycleReport:
    """How much memory of a device collections have freed that only dead reference cycles held.

    Totals and single collections are always known. Which types held the memory is known of collections that
    `record_cycles` was on for. Print the report to read it.
    """
    lazy_init()
    index = existing_index(device)
    ledger = core().cycle_ledger(index)
    collections, freed_bytes, freed_blocks = ledger["pressure"]
    other_collections, other_freed_bytes, _ = ledger["program"]
    return CycleReport(
        device=index,
        collections=collections,
        freed_bytes=freed_bytes,
        freed_blocks=freed_blocks,
        other_collections=other_collections,
        other_freed_bytes=other_freed_bytes,
        recorded_bytes=ledger["recorded_bytes"],
        holders=_holders(ledger["holdings"]),
        sites=_sites(ledger["sites"]),
        recent=tuple(_collection(each) for each in ledger["recent"]),
    )


def reset_cycle_report(device: DeviceLike = None) -> None:
    """Forgets what `cycle_report` tells."""
    lazy_init()
    core().reset_cycle_ledger(existing_index(device))


def record_cycles(enabled: bool = True, *, warn_bytes: int | None = None) -> None:
    """Records which objects held the device memory that collections free, for `cycle_report`. For development.

    Recorded are the collections that the allocator runs when a device is full. With `warn_bytes` all collections are,
    those that Python runs by itself too, and dead cycles that held so many bytes or more are warned about, with a
    `CycleWarning` that names the types around the cycle.

    A recorded collection frees what it would free otherwise, and takes longer: it looks at all objects that it found.
    The same can be set at start: `TORCH_SPYRE_ALLOC_CONF=cycles:true,cycle_warning:64MiB`.

    Args:
        enabled: whether to record from now on; False ends it, and the warnings.
        warn_bytes: the size from which on to warn, at least 1; None does not warn.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: `warn_bytes` is below 1 or does not fit in 63 bits, or is given with `enabled=False`.
    """
    lazy_init()
    checked_bool("enabled", enabled)
    if warn_bytes is not None:
        checked_int("warn_bytes", warn_bytes, "None, or bytes", 1, 2**63 - 1)
        if not enabled:
            raise ValueError(
                f"warn_bytes={warn_bytes} with enabled=False: nothing is recorded; expected one or the other"
            )
    core().record_cycles(enabled, warn_bytes)


def _holders(holdings: list[dict[str, Any]]) -> tuple[CycleHolder, ...]:
    holders = [
        CycleHolder(
            name=each["name"],
            freed_bytes=each["nbytes"],
            freed_blocks=each["blocks"],
            native_bytes=each["native_bytes"],
            cycles=each["cycles"],
            path=each["path"],
            filename=each["filename"],
            line=each["line"],
            frames=tuple(each["frames"]),
        )
        for each in holdings
    ]
    return tuple(sorted(holders, key=lambda holder: (-holder.freed_bytes, holder.name)))


def _sites(sites: list[tuple[list[Frame], int, int]]) -> tuple[CycleSite, ...]:
    """Those of which the place is known, one for each stack."""
    known = [CycleSite(tuple(frames), nbytes, blocks) for frames, nbytes, blocks in sites if frames]
    return tuple(sorted(known, key=lambda site: (-site.freed_bytes, site.frames)))


def _collection(record: dict[str, Any]) -> CycleCollection:
    holdings = record["holdings"]
    return CycleCollection(
        under_pressure=record["under_pressure"],
        generation=record["generation"],
        objects=record["objects"],
        freed_bytes=record["freed_bytes"],
        freed_blocks=record["freed_blocks"],
        seconds=record["elapsed_ns"] / 1e9,
        holders=None if holdings is None else _holders(holdings),
        sites=_sites(record["sites"]),
    )
