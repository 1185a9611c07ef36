"""Writes the pickles, and the page, that the tests of flexmem read: `python3 crates/flexmem/tests/data/make.py`.

One small snapshot in every protocol, and in the ways that pickles differ: frames shared between stacks or not, a list of
segments alone, the history of each block of 2022, integers of nine bytes.
"""

from __future__ import annotations

import base64
import collections
import json
import pickle
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BASE = (1 << 64) - (1 << 30)
"""High addresses: integers of nine bytes in a pickle."""

MAIN = {"name": "main", "filename": "train.py", "line": 7}
STEP = {"name": "step", "filename": "train.py", "line": 3}
STACK = [STEP, MAIN]
RECURSIVE = [STEP, STEP, STEP, MAIN]


def event(action: str, offset: int, size: int, frames: list[dict[str, Any]] = STACK) -> dict[str, Any]:
    time_us = 1_700_000_000_000_000 + offset
    return {"action": action, "addr": BASE + offset, "size": size, "stream": 0, "time_us": time_us, "frames": frames}


def block(offset: int, size: int, requested: int, state: str) -> dict[str, Any]:
    return {
        "address": BASE + offset,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": [MAIN] if state == "active_allocated" else [],
    }


def snapshot() -> dict[str, Any]:
    blocks = [
        block(0, 1024, 1000, "active_allocated"),
        block(1024, 512, 500, "active_pending_free"),
        block(1536, 512, 300, "inactive"),
        block(2048, 2048, 2048, "active_allocated"),
    ]
    segment = {
        "device": 0,
        "address": BASE,
        "total_size": 4096,
        "allocated_size": 3072,
        "active_size": 3584,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": (0, 3),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
    first = [
        event("free_completed", 512, 7),  # Live before.
        event("alloc", 0, 1000),
        event("alloc", 1024, 500, RECURSIVE),
        event("alloc", 1536, 300, []),
        event("free_requested", 1024, 500),
        event("free_requested", 1536, 300),
        event("free_completed", 1536, 300, STACK),
        {"action": "oom", "size": 1 << 40, "device_free": 12345, "stream": 0, "frames": RECURSIVE},
        event("user_defined", 0, 0),
    ]
    return {
        "segments": [segment],
        "device_traces": [first, [], [event("alloc", 5 << 20, 64)]],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
            "max_split_size": 64 << 20,
            "expandable_segments": False,
            "roundup_power2_divisions": {"1": 0, "2": 4},
        },
        "external_annotations": [{"stage": "START", "name": "step 1", "device": 0, "time_us": 5}],
    }


def old_style() -> list[dict[str, Any]]:
    history = [{"addr": BASE, "real_size": 900, "frames": STACK}, {"addr": BASE, "real_size": 50, "frames": [MAIN]}]
    blocks = [{"size": 1024, "state": "active_allocated", "history": history}, {"size": 1024, "state": "inactive"}]
    return [{"device": 1, "address": BASE, "total_size": 2048, "stream": 0, "segment_type": "large", "blocks": blocks}]


def pressure() -> dict[str, Any]:
    """As `spyre` writes it: a request that a collection serves, and one that fails."""
    more: dict[str, Any] = {"thread_id": 77, "pool_id": (0, 0)}
    collected = {"generation": "full", "objects": 12, "duration_us": 900}
    outcome = {"reclaimed_bytes": 512, "young_collections": 1, "full_collections": 1, "skipped": None}
    events = [
        event("alloc", 0, 500) | more | {"allocated_size": 512},
        event("pressure_begin", 0, 600) | more | {"addr": 0, "device_free": 100, "largest_free": 50},
        event("gc_collect", 0, 512) | more | {"addr": 0} | collected,
        event("free_completed", 0, 500) | more | {"allocated_size": 512},
        event("pressure_end", 0, 600) | more | {"addr": 0, "outcome": "rescued", "duration_us": 1000} | outcome,
        event("pressure_begin", 0, 700) | more | {"addr": 0, "device_free": 100, "largest_free": 50},
        event("pressure_end", 0, 700) | more | {"addr": 0, "outcome": "failed", "duration_us": 5, "skipped": "off"},
        {"action": "oom", "size": 700, "device_free": 100, "largest_free": 50, "stream": 0, "frames": STACK} | more,
    ]
    histories = [{"recording": True, "lost_events": 9}]
    settings = {"expandable_segments": False, "TORCH_SPYRE_ALLOC_CONF": "", "spyre": {"device_memory": 4096}}
    snapshot = {"segments": [], "device_traces": [events], "history": histories}
    return snapshot | {"allocator_settings": settings}


def odd() -> dict[str, Any]:
    """What cannot be, beside what can."""

    def segment(address: int, size: int, *blocks: dict[str, Any], **more: int) -> dict[str, Any]:
        fixed = {"device": 0, "stream": 0, "segment_type": "large"}
        return fixed | {"address": address, "total_size": size, "blocks": list(blocks)} | more

    def block(address: int, size: int, state: str = "inactive") -> dict[str, Any]:
        return {"address": address, "size": size, "requested_size": size, "state": state}

    live = "active_allocated"
    events: list[dict[str, Any]] = [
        {"action": "segment_alloc", "addr": 0x1000, "size": 1024, "stream": 0},
        {"action": "alloc", "addr": 0x1000, "size": 512, "stream": 0},
        {"action": "alloc", "addr": 0x1200, "size": -512, "stream": 0},
        {"action": "alloc", "addr": -1, "size": 512, "stream": 0},
        {"action": "alloc", "addr": 1 << 64, "size": 512, "stream": 0},
    ]
    segments = [
        segment(0x1000, 1024, block(0x1000, 512, live), block(0x1200, 512)),
        segment(0x2000, -1024, block(0x2000, 1024)),
        segment(0x3000, 1024, block(0x3000, 1024), allocated_size=-1),
        segment((1 << 64) - 256, 1024, block((1 << 64) - 256, 1024)),
        segment(0x4000, 1024, block(0x4000, 512, live), block(0x4200, 513, live)),
        segment(0x5000, 1024, block(0x5000, 512, live), block(0x51FF, 513, live)),
        segment(0x6000, 1024, block(0x6000, 512, live)),
        segment(0x7000, 1024, block(0x7000, -512, live), block(0x7000, 1024, live)),
        segment(0x1200, 512, block(0x1200, 256), block(0x1300, 256, live), requested_size=255),
    ]
    return {"segments": segments, "device_traces": [events]}


def shared() -> dict[str, Any]:
    """Plain data in which everything stands in several places that can."""
    sizes = {"size": 1024, "requested_size": 1000}
    block = sizes | {"state": "active_allocated", "frames": STACK}  # Without an address, as those of 2022.
    owned = sizes | {"state": "active_allocated", "history": [{"addr": BASE, "real_size": 900, "frames": STACK}]}
    blocks, owned_blocks = [block, block], [owned, owned]
    fixed = {"device": 0, "total_size": 2048, "stream": 0, "segment_type": "large"}
    segment = fixed | {"address": BASE, "blocks": blocks}
    others = [fixed | {"address": BASE + (number << 20), "blocks": owned_blocks} for number in (1, 2)]
    pair = [event("alloc", 0, 1000), event("free_completed", 0, 1000)]
    trace = pair * 2
    late = fixed | {"address": BASE + (3 << 20), "blocks": blocks}
    return {"device_traces": [trace, pair, trace, []], "segments": [segment, segment, *others, late]}


def separate(value: Any) -> Any:
    """The same data, with each list and dict in one place."""
    if isinstance(value, dict):
        return {key: separate(item) for key, item in value.items()}
    return [separate(item) for item in value] if isinstance(value, list) else value


def page(data: bytes) -> str:
    files = json.dumps([{"name": "snapshot.pickle", "base64": base64.b64encode(data).decode()}])
    return f"<!DOCTYPE html>\n<script>\nadd_local_files({files}, 'trace')\n</script>\n"


def main() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (HERE / f"protocol_{protocol}.pickle").write_bytes(pickle.dumps(snapshot(), protocol))
    (HERE / "bare_list.pickle").write_bytes(pickle.dumps(old_style(), 4))
    (HERE / "ordered_dict.pickle").write_bytes(pickle.dumps(collections.OrderedDict(snapshot()), 2))
    (HERE / "pressure.pickle").write_bytes(pickle.dumps(pressure(), 4))
    (HERE / "odd.pickle").write_bytes(pickle.dumps(odd(), 4))
    for protocol in (0, 2, 4):
        (HERE / f"shared_{protocol}.pickle").write_bytes(pickle.dumps(shared(), protocol))
    (HERE / "separate.pickle").write_bytes(pickle.dumps(separate(shared()), 4))
    (HERE / "page.html").write_text(page(pickle.dumps(snapshot(), 4)))


if __name__ == "__main__":
    main()
