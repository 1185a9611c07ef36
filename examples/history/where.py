"""Where did the memory go? Records what a small program does, and reads the answer from a snapshot.

python examples/history/where.py                  # prints it
python examples/history/where.py snapshot.pickle  # also writes the snapshot, for https://pytorch.org/memory_viz
"""

import gc
import os
import sys
from collections import Counter

os.environ["TORCH_SPYRE_ALLOC_CONF"] = "device_memory:64MiB"

import torch

MIB = 1 << 20


class Step:
    """Holds an activation, and itself: only the collector frees it."""

    def __init__(self):
        self.itself = self
        self.activation = torch.ones(6 * MIB, dtype=torch.uint8, device="spyre")


def remember(losses):
    losses.append(torch.zeros(MIB // 4, device="spyre"))  # Meant to keep a number, keeps a tensor.


def train(steps):
    losses = []
    for _ in range(steps):
        Step()
        remember(losses)
    return losses


def live_by_line(snapshot):
    """Live bytes by the innermost line of this file."""
    live = Counter()
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                own = [frame for frame in block["frames"] if frame["filename"] == __file__]
                live[f"{own[0]['name']}, line {own[0]['line']}" if own else "elsewhere"] += block["size"]
    return live


def main():
    gc.collect()
    gc.disable()
    torch.spyre.memory._record_memory_history(max_entries=10_000)
    kept = train(steps=12)
    snapshot = torch.spyre.memory._snapshot()
    print("live memory, by where it was allocated:")
    for line, size in live_by_line(snapshot).most_common():
        print(f"  {size / MIB:5.1f} MiB  {line}")
    print("when there was no room:")
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "pressure_begin":
            print(f"  {entry['size'] / MIB:.1f} MiB wanted, {entry['device_free'] / MIB:.1f} MiB free: ", end="")
        elif entry["action"] == "pressure_end":
            collections = entry["young_collections"] + entry["full_collections"]
            freed = entry["reclaimed_bytes"] / MIB
            print(f"{entry['outcome']}, {freed:.1f} MiB of garbage in {collections} collection(s)")
    actions = Counter(entry["action"] for entry in snapshot["device_traces"][0])
    print("recorded:", ", ".join(f"{count} {action}" for action, count in sorted(actions.items())))
    if len(sys.argv) > 1:
        torch.spyre.memory._dump_snapshot(sys.argv[1])
    del kept


if __name__ == "__main__":
    main()
