"""What happened on one device, as far as a snapshot tells: blocks, from the first to the last event.

A recording may have begun in mid-life, or have lost its oldest events. What was live by then is found from both ends: a
block that is freed without having been allocated was there before, and so was one that is live in the segments without
having been allocated. These blocks are the *baseline*.

The history is *whole* if nothing was live or reserved at its beginning. Otherwise there may have been a higher peak
before it, and the peak is a lower bound.

A block is free when the free is completed, not when it is requested: until then its memory is in use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch_spyre.memory_snapshots.contents import Event, Snapshot

_SEGMENT_VERBS = {
    "segment_alloc": "segment",
    "segment_free": "segment-free",
    "segment_map": "map",
    "segment_unmap": "unmap",
}
_SILENT = ("free_requested", "snapshot")
"""Actions that change nothing."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of a trace. `block` numbers blocks from 0, the baseline first; None for what is not about one."""

    verb: str
    block: int | None
    size_bytes: int
    address: int
    device_free_bytes: int | None = None


@dataclass(slots=True)
class Timeline:
    """One device's. `baseline` is in the order of addresses, before `operations`."""

    source: str
    device: int
    baseline: list[Operation] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    baseline_freed: int = 0
    reserved_before_bytes: int = 0
    """Reserved when recording began."""
    contradictions: int = 0
    """Allocations of what is live, frees of what is not, and what events and segments tell differently of the end."""
    unknown_actions: Counter[str] = field(default_factory=Counter)

    @property
    def baseline_bytes(self) -> int:
        """What was live when recording began."""
        return sum(block.size_bytes for block in self.baseline)

    @property
    def is_whole(self) -> bool:
        """Whether recording began with an empty device, so that the peak is exact."""
        has_events = any(operation.verb == "allocate" for operation in self.operations)
        return has_events and not (self.baseline or self.reserved_before_bytes or self.contradictions)

    def count(self, verb: str) -> int:
        """How many operations have this verb."""
        return sum(operation.verb == verb for operation in self.operations)

    def peak_bytes(self) -> int:
        """The most requested bytes that were live at once."""
        sizes = {block.block: block.size_bytes for block in self.baseline}
        live = peak = self.baseline_bytes
        for operation in self.operations:
            if operation.verb == "allocate":
                sizes[operation.block] = operation.size_bytes
                live += operation.size_bytes
                peak = max(peak, live)
            elif operation.verb == "free":
                live -= sizes[operation.block]
        return peak


def timelines(snapshot: Snapshot) -> Iterator[Timeline]:
    """One for each device that the snapshot knows anything of."""
    for device in snapshot.devices():
        events = snapshot.events[device] if device < len(snapshot.events) else []
        builder = _Builder(snapshot, device)
        builder.find_baseline(events)
        for event in events:
            builder.play(event)
        yield builder.finish(events)


class _Builder:
    """Plays the events of a device twice: to find the baseline, then to write the operations down."""

    def __init__(self, snapshot: Snapshot, device: int) -> None:
        self._timeline = Timeline(snapshot.source, device)
        self._segments = [segment for segment in snapshot.segments if segment.device == device]
        blocks = (block for segment in self._segments for block in segment.blocks)
        self._live_at_end = {block.address: block.requested_bytes for block in blocks if block.is_live}
        self._live: dict[int, int] = {}
        """Numbers of live blocks by address."""
        self._next_block = 0

    def find_baseline(self, events: list[Event]) -> None:
        """Numbers the blocks that were live before the first event."""
        seen: set[int] = set()
        before: dict[int, int] = {}
        for event in events:
            if event.action in ("alloc", "free_completed"):
                if event.action == "free_completed" and event.address not in seen:
                    before[event.address] = event.size_bytes
                seen.add(event.address)
        self._timeline.baseline_freed = len(before)
        before |= {address: size for address, size in self._live_at_end.items() if address not in seen}
        for address, size in sorted(before.items()):
            self._timeline.baseline.append(Operation("baseline", self._number(address), size, address))

    def play(self, event: Event) -> None:
        """Writes down what an event did."""
        if event.action == "alloc":
            self._allocate(event)
        elif event.action == "free_completed":
            self._free(event)
        elif event.action in _SEGMENT_VERBS:
            self._write(_SEGMENT_VERBS[event.action], None, event)
        elif event.action == "oom":
            self._write("oom", None, event)
        elif event.action not in _SILENT:
            self._timeline.unknown_actions[event.action] += 1

    def finish(self, events: list[Event]) -> Timeline:
        """Compares the end with the segments."""
        reserved = sum(segment.size_bytes for segment in self._segments)
        for event in events:
            if event.action in ("segment_alloc", "segment_map"):
                reserved -= event.size_bytes
            elif event.action in ("segment_free", "segment_unmap"):
                reserved += event.size_bytes
        self._timeline.reserved_before_bytes = max(reserved, 0)
        self._timeline.contradictions += reserved < 0
        self._timeline.contradictions += len(self._live.keys() ^ self._live_at_end.keys())
        return self._timeline

    def _allocate(self, event: Event) -> None:
        if event.address in self._live:
            self._timeline.contradictions += 1
            self._free(event)
        self._write("allocate", self._number(event.address), event)

    def _free(self, event: Event) -> None:
        block = self._live.pop(event.address, None)
        if block is None:
            self._timeline.contradictions += 1
        else:
            self._write("free", block, event)

    def _number(self, address: int) -> int:
        block = self._next_block
        self._next_block += 1
        self._live[address] = block
        return block

    def _write(self, verb: str, block: int | None, event: Event) -> None:
        operation = Operation(verb, block, event.size_bytes, event.address, event.device_free_bytes)
        self._timeline.operations.append(operation)
