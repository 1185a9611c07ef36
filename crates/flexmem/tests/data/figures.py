"""What the real snapshots say, found without any code of flexmem: writes figures.json, which its tests compare with.

`python3 crates/flexmem/tests/data/figures.py`. The files are of this repository: loading them runs nothing, and an
unpickler that knows no names makes sure of that.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SAMPLES = HERE.parents[3] / "tests/data/snapshots"


class Plain(pickle.Unpickler):
    """Knows no names."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


def figures(snapshot: dict[str, Any], device: int) -> dict[str, Any]:
    segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
    traces = snapshot["device_traces"]
    events = traces[device] if device < len(traces) else []
    result: dict[str, Any] = {"device": device, "memory": memory(segments) if segments else None}
    result.update(past(segments, [event for event in events if event["action"] != "snapshot"]))
    return result


def memory(segments: list[dict[str, Any]]) -> dict[str, int]:
    blocks = [block for segment in segments for block in segment["blocks"]]
    live = [block for block in blocks if block["state"] == "active_allocated"]
    empty = [segment for segment in segments if all(block["state"] == "inactive" for block in segment["blocks"])]
    return {
        "reserved_bytes": sum(segment["total_size"] for segment in segments),
        "allocated_bytes": sum(segment["allocated_size"] for segment in segments),
        "active_bytes": sum(segment["active_size"] for segment in segments),
        "requested_bytes": sum(block["requested_size"] for block in live),
        "largest_hole_bytes": max((block["size"] for block in blocks if block["state"] == "inactive"), default=0),
        "releasable_bytes": sum(segment["total_size"] for segment in empty),
        "segments": len(segments),
        "expandable_segments": sum(segment.get("is_expandable", False) for segment in segments),
    }


def live_at_end(segments: list[dict[str, Any]]) -> dict[int, int]:
    live = {}
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                live[address] = block["requested_size"]
            address += block["size"]
    return live


def past(segments: list[dict[str, Any]], events: list[dict[str, Any]]) -> dict[str, Any]:
    """Goes through the events backwards from the end, where all is known, to what was live at the beginning."""
    live = live_at_end(segments)
    reserved = sum(segment["total_size"] for segment in segments)
    sizes = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    now = sum(live.values())
    course = [(now, reserved)]
    failures = []
    for event in reversed(events):
        action, size = event["action"], event["size"]
        if action == "alloc":
            now -= live.pop(event["addr"])
        elif action == "free_completed":
            live[event["addr"]] = size
            now += size
        elif action == "oom":
            failures.append({"requested_bytes": size, "device_free_bytes": event["device_free"], "live_bytes": now})
        reserved -= sizes.get(action, 0) * size
        course.append((now, reserved))
    return {
        "allocations": sum(event["action"] == "alloc" for event in events),
        "frees": sum(event["action"] == "free_completed" for event in events),
        "recorded": bool(events),
        "baseline_blocks": len(live) if events else 0,
        "baseline_bytes": sum(live.values()) if events else 0,
        "reserved_before_bytes": reserved if events else None,
        "peak_bytes": max(bytes for bytes, _ in course) if events else None,
        "reserved_peak_bytes": max(bytes for _, bytes in course) if events else None,
        "out_of_memory": failures[::-1],
    }


def main() -> None:
    found = {}
    for path in sorted(SAMPLES.glob("*.pickle")):
        with path.open("rb") as file:
            snapshot = Plain(file).load()
        devices = range(len(snapshot["device_traces"]))
        found[path.name] = [figures(snapshot, device) for device in devices]
    (HERE / "figures.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
