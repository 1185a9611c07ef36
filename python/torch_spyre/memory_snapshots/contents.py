"""What a memory snapshot says, checked: segments with their blocks, and the events of each device.

The structure is that of `torch.cuda.memory._snapshot()`, of all generations since 2022: `device_traces` with one list
of events for each device, or a `history` of each block and no events, or segments alone (also as a bare list, from
`torch.cuda.memory_snapshot()`). Sizes of events are requested ones; blocks have `size`, rounded, and `requested_size`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_spyre.memory_snapshots import plain_pickle
from torch_spyre.memory_snapshots.errors import SnapshotError

_LIVE_STATES = ("active_allocated", "active_pending_free", "active_awaiting_free")
"""The last two: freed by the program while a stream still uses it."""

_ADDRESS_LIMIT = 1 << 64


@dataclass(frozen=True, slots=True)
class Block:
    """A span of a segment at the time of the snapshot."""

    address: int
    requested_bytes: int
    is_live: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory taken from the device, at the time of the snapshot."""

    device: int
    address: int
    size_bytes: int
    blocks: list[Block]


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of a device's trace, in the order of recording. The address of an `oom` is 0."""

    action: str
    address: int
    size_bytes: int
    device_free_bytes: int | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole file. `events` is by device."""

    source: str
    segments: list[Segment]
    events: list[list[Event]]

    def devices(self) -> list[int]:
        """The devices that anything is known of."""
        busy = {device for device, events in enumerate(self.events) if events}
        return sorted(busy | {segment.device for segment in self.segments})


def read(path: Path) -> Snapshot:
    """The snapshot in a file.

    Raises SnapshotError if it is not one, and OSError if it cannot be read.
    """
    data = path.read_bytes()
    root = _Node(plain_pickle.load(data, path.name), f"{path.name}: ", _Budget(len(data)))
    segments = root if root.is_list() else root.get("segments")
    traces = None if root.is_list() else root.find("device_traces")
    return Snapshot(
        source=path.name,
        segments=[_segment(node) for node in segments.items()],
        events=[] if traces is None else [[_event(node) for node in trace.items()] for trace in traces.items()],
    )


class _Budget:
    """Bounds the items that are looked at by the bytes of the file.

    A pickle can name one list many times. A small hostile file could mean more segments and blocks than fit anywhere.
    """

    def __init__(self, file_bytes: int) -> None:
        self._left = file_bytes

    def spend(self, items: int, place: str) -> None:
        self._left -= items
        if self._left < 0:
            raise SnapshotError(f"{place}: expected fewer items in all lists together than the file has bytes")


class _Node:
    """A value and where it was found, for errors."""

    __slots__ = ("_budget", "_path", "_value")

    def __init__(self, value: Any, path: str, budget: _Budget) -> None:
        self._value = value
        self._path = path
        self._budget = budget

    def is_list(self) -> bool:
        return isinstance(self._value, list | tuple)

    def find(self, key: str) -> _Node | None:
        if not isinstance(self._value, dict):
            raise self._wrong("a dict")
        if key not in self._value:
            return None
        separator = "" if self._path.endswith(" ") else "."
        return _Node(self._value[key], f"{self._path}{separator}{key}", self._budget)

    def get(self, key: str) -> _Node:
        node = self.find(key)
        if node is None:
            raise SnapshotError(f"{self.place()}: expected the key {key!r}, which is missing")
        return node

    def items(self) -> Iterator[_Node]:
        if not self.is_list():
            raise self._wrong("a list")
        self._budget.spend(len(self._value), self.place())
        return (_Node(item, f"{self._path}[{index}]", self._budget) for index, item in enumerate(self._value))

    def integer(self) -> int:
        value = self._value
        if type(value) is not int:
            raise self._wrong("an integer")
        if not 0 <= value < _ADDRESS_LIMIT:
            raise SnapshotError(f"{self.place()}: expected an integer from 0 to 2**64 - 1")
        return value

    def text(self) -> str:
        if not isinstance(self._value, str):
            raise self._wrong("a string")
        return self._value

    def wrong_value(self, expected: str) -> SnapshotError:
        return SnapshotError(f"{self.place()}: expected {expected}, found {self._value!r:.60}")

    def _wrong(self, expected: str) -> SnapshotError:
        return SnapshotError(f"{self.place()}: expected {expected}, found {type(self._value).__name__}")

    def place(self) -> str:
        return self._path.removesuffix(": ")


def _segment(node: _Node) -> Segment:
    address = node.get("address").integer()
    blocks, offset = [], 0
    for block_node in node.get("blocks").items():
        size = block_node.get("size").integer()
        blocks.append(_block(block_node, address + offset, size))
        offset += size
    size_bytes = node.get("total_size").integer()
    if offset != size_bytes:
        raise node.get("total_size").wrong_value(f"the sum of the sizes of the blocks, {offset}")
    return Segment(node.get("device").integer(), address, size_bytes, blocks)


def _block(node: _Node, address: int, size: int) -> Block:
    """A block of a segment. It lies behind the one before it: old snapshots give it no address."""
    stated = node.find("address")
    if stated is not None and stated.integer() != address:
        raise stated.wrong_value(f"{address}, behind the block before it")
    state = node.get("state")
    is_live = state.text() in _LIVE_STATES
    if not is_live and state.text() != "inactive":
        raise state.wrong_value("one of inactive, " + ", ".join(_LIVE_STATES))
    return Block(address, _requested_bytes(node, size), is_live)


def _requested_bytes(node: _Node, size: int) -> int:
    """What the program asked for. The oldest snapshots have it as `real_size` in the block's history, if at all."""
    requested = node.find("requested_size")
    if requested is not None:
        return requested.integer()
    history = node.find("history")
    newest = None if history is None else next(history.items(), None)
    return size if newest is None else newest.get("real_size").integer()


def _event(node: _Node) -> Event:
    action = node.get("action").text()
    address = node.find("addr")
    if address is None and action != "oom":
        raise SnapshotError(f"{node.place()}: expected the key 'addr', which is missing")
    free = node.find("device_free")
    return Event(
        action,
        0 if address is None else address.integer(),
        node.get("size").integer(),
        None if free is None else free.integer(),
    )
