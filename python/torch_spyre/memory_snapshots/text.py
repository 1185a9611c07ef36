"""Traces as text: one operation a line, comments behind `#`. The benchmarks play them (`benches/data/snapshots`).

    baseline ID BYTES at ADDRESS        live before recording began
    allocate ID BYTES at ADDRESS
    free ID
    segment BYTES at ADDRESS            memory taken from the device; given back: `segment-free`
    map BYTES at ADDRESS                the same within an expandable segment; given back: `unmap`
    oom BYTES with BYTES free           a request that failed, and what the device had

IDs count from 0. Addresses count from the lowest one, so that a trace does not tell where the process had its memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch_spyre.memory_snapshots.timeline import Operation, Timeline


def lines(timeline: Timeline) -> Iterator[str]:
    """The trace with its heading, without ends of lines."""
    yield from (f"# {line}" for line in heading(timeline))
    operations = timeline.baseline + timeline.operations
    lowest = min((operation.address for operation in operations if operation.verb != "oom"), default=0)
    yield from (_line(operation, lowest) for operation in operations)


def heading(timeline: Timeline) -> Iterator[str]:
    """Where a trace comes from and what it is worth."""
    source = ascii(timeline.source)[1:-1]  # A name may hold an end of line.
    blocks, size = len(timeline.baseline), timeline.baseline_bytes
    allocations, frees, ooms = (timeline.count(verb) for verb in ("allocate", "free", "oom"))
    yield "A trace of PyTorch's caching allocator, from a memory snapshot. In bytes, as requested."
    yield f"source: {source}, device {timeline.device}"
    yield f"history: {'whole' if timeline.is_whole else 'not whole'}"
    yield f"live before: {blocks} blocks of {size} bytes, never seen allocated, {timeline.baseline_freed} of them freed"
    yield f"reserved before: {timeline.reserved_before_bytes} bytes"
    yield f"events: {allocations} allocations, {frees} frees, {ooms} oom"
    yield f"peak_bytes: {timeline.peak_bytes()}"
    yield f"peak_is_lower_bound: {'no' if timeline.is_whole else 'yes'}"
    if timeline.contradictions:
        yield f"contradictions: {timeline.contradictions} events do not fit the others"
    if timeline.unknown_actions:
        unknown = ", ".join(f"{action!a} {count} times" for action, count in timeline.unknown_actions.items())
        yield f"left out, since their meaning is not known: {unknown}"


def _line(operation: Operation, lowest: int) -> str:
    size, place = operation.size_bytes, f"at {operation.address - lowest}"
    match operation.verb:
        case "baseline" | "allocate":
            return f"{operation.verb} {operation.block} {size} {place}"
        case "free":
            return f"free {operation.block}"
        case "oom":
            return f"oom {size} with {operation.device_free_bytes or 0} free"
        case verb:
            return f"{verb} {size} {place}"
