"""The table that `torch.spyre.memory_summary` returns, in the manner of torch.cuda's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WIDTH = 75

_BYTES = [
    ("allocated_bytes", "Allocated memory"),
    ("active_bytes", "Active memory"),
    ("requested_bytes", "Requested memory"),
    ("reserved_bytes", "Reserved memory"),
    ("inactive_split_bytes", "Free in used regions"),
]
_COUNTS = [
    ("allocation", "Allocations"),
    ("active", "Active allocations"),
    ("segment", "Reserved segments"),
    ("inactive_split", "Free blocks"),
]


def format_summary(
    stats: Mapping[str, int],
    pressure: Mapping[str, int],
    stream: Mapping[str, Any] | None,
    device: int,
    *,
    abbreviated: bool,
) -> str:
    """`memory_stats`, `pressure_stats` and the history's stream as a table; `abbreviated` leaves out the counts."""
    lines = [
        "=" * _WIDTH,
        f"PyTorch spyre memory summary, device ID {device}".center(_WIDTH),
        "-" * _WIDTH,
        f" spyre OOMs: {stats['num_ooms']:<22d}| allocation retries: {stats['num_alloc_retries']}",
        "=" * _WIDTH,
        _row("Metric", "Cur Usage", "Peak Usage", "Tot Alloc", "Tot Freed"),
    ]
    rows = [(key, name, True) for key, name in _BYTES]
    if not abbreviated:
        rows += [(key, name, False) for key, name in _COUNTS]
    for key, name, is_size in rows:
        values = [stats[f"{key}.all.{kind}"] for kind in ("current", "peak", "allocated", "freed")]
        lines += ["-" * _WIDTH, _row(name, *(_size(value) if is_size else str(value) for value in values))]
    lines += ["=" * _WIDTH, *_pressure(pressure)]
    if stream is not None:
        lines += ["-" * _WIDTH, *_stream(stream)]
    lines += ["=" * _WIDTH]
    return "".join(f"|{line:<{_WIDTH}}|\n" for line in lines)


def _pressure(pressure: Mapping[str, int]) -> list[str]:
    rows = [
        ("Requests in pressure", f"{pressure['rescued']} rescued, {pressure['failed']} failed"),
        ("Collections for them", f"{pressure['collections.young']} young, {pressure['collections.full']} full"),
        ("Freed by those", f"{_size(pressure['reclaimed_bytes'])} in {pressure['collection_time_ns'] / 1e6:.1f} ms"),
    ]
    return [f" {name:<21} | {value}" for name, value in rows]


def _stream(stream: Mapping[str, Any]) -> list[str]:
    """Of all devices. What is not in the stream is said, and a file that failed."""
    state = "running" if stream["running"] else "ended"
    missing = f"{stream['lost_events']} lost, {stream['dropped_events']} dropped"
    rows = [("Stream of the history", f"{state}: {stream['events']} events, {missing}")]
    if stream["file_error"] is not None:
        rows.append(("Its file failed", stream["file_error"][: _WIDTH - 27]))
    return [f" {name:<21} | {value}" for name, value in rows]


def _row(name: str, *values: str) -> str:
    return f" {name:<21}" + "".join(f" | {value:>10}" for value in values)


def _size(nbytes: int) -> str:
    if nbytes < 1024:
        return f"{nbytes} B"
    value, units = nbytes / 1024, ["KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.1f} {units[0]}"
