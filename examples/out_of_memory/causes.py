"""Runs out of device memory for one reason out of seven, and prints the error, a sentence in each line.

    TORCH_SPYRE_ALLOC_CONF=device_memory:64MiB python examples/out_of_memory/causes.py leak

The reasons: cycles, traceback, frozen, fragmented, region (with FLEX_DEVICE=PF), batch, leak; `report` stages the
traceback and prints the held report instead.
"""

import gc
import os
import re
import sys

import torch

MIB = 1 << 20

memory = torch.spyre.memory


def block(mebibytes: int) -> torch.Tensor:
    return torch.empty(mebibytes * MIB, dtype=torch.uint8, device="spyre")


class Trainer:
    """Refers to itself, so only the collector frees it."""

    def __init__(self) -> None:
        self.callbacks = [self]
        self.activations = block(1)


def cycles() -> None:
    memory.set_pressure_policy(gc="off")
    for _ in range(60):
        Trainer()
    block(8)


def run_batch() -> None:
    activations = [block(1) for _ in range(60)]
    raise ValueError(f"bad label in a batch with {len(activations)} layers")


def traceback() -> None:
    failures = []
    try:
        run_batch()
    except ValueError as error:
        failures.append(error)
    block(8)


def frozen() -> None:
    for _ in range(60):
        Trainer()
    gc.freeze()
    block(8)


def fragmented() -> None:
    data, table, more_data, cache = block(28), block(4), block(28), block(4)
    del data, more_data
    block(32)
    del table, cache


def region() -> None:
    block(16)


def load_batch() -> torch.Tensor:
    return block(62)


def batch() -> None:
    weights = [block(1) for _ in range(4)]
    load_batch()
    del weights


def leak() -> None:
    losses = []
    while True:
        outputs = block(1) + 1
        losses.append(outputs * 2)


def report() -> None:
    try:
        traceback()
    except torch.OutOfMemoryError:
        print(str(memory.held_report()).replace(os.getcwd() + os.sep, ""))


def main() -> None:
    stages = {stage.__name__: stage for stage in (cycles, traceback, frozen, fragmented, region, batch, leak, report)}
    if len(sys.argv) != 2 or sys.argv[1] not in stages:
        sys.exit(f"usage: causes.py {'|'.join(stages)}")
    gc.disable()
    memory._record_memory_history()
    try:
        stages[sys.argv[1]]()
    except torch.OutOfMemoryError as error:
        text = str(error).replace(os.getcwd() + os.sep, "")
        print(re.sub(r"(?<=[.)]) (?=[A-Z0-9])", "\n", text))
    else:
        if sys.argv[1] != "report":
            sys.exit("expected an out-of-memory error, and there was none")


if __name__ == "__main__":
    main()
