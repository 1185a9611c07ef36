"""Measure what collections cost two ranks that train together, and what a collection plan saves.

Two processes train one small model with DistributedDataParallel, each beside a large live heap. A step leaves a dead
cycle that holds device memory, more on one rank than on the other, as with inputs of different lengths, and a few
thousand records that stay for a while. Nothing but who collects when differs between the manners; they take turns in
one run.

Ranks wait for each other in each step, so a step takes as long as on the slower of them. What is added up is therefore
the processor time of the rank that needed more in each step: the time on a machine with a core for each rank, whatever
else this one does. A ratio is over the same steps without garbage, in the same round. Steps count after the warm-up of
each turn. Puts the ratios into target/bench/summary.json, lower is better, and all figures into
target/bench/planned.json.

    planned.automatic   Python's automatic collection; the allocator collects when a device is full
    planned.manual      gc.disable(), and gc.collect() on each rank when its own device has grown by a limit
    planned.together    planned(freeze=False), full collections at the same limit: all ranks after the same step
    planned.planned     planned() with the same limit
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["TORCH_SPYRE_ALLOC_CONF"] = "device_memory:256MiB"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # DDP warns that it has no timers for this device.
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn

from measure import SUMMARY, machine, write_summary
from torch_spyre.gc import planned

RANKS = 2
WARMUP_STEPS = 3
LIMIT_BYTES = 48 << 20
GARBAGE_BYTES = (3 << 20, 2 << 20)
"""Of a step, by rank."""
RECORDS = (3000, 2500)
"""Objects that a step makes and that stay for RECORD_STEPS steps, by rank. Python counts them, and collects when there
are enough."""
RECORD_STEPS = 50


class StepState:
    """What a step keeps together. It knows itself, as states with callbacks do, so only a collection frees it."""

    def __init__(self, nbytes: int) -> None:
        self.me: StepState | None = self
        self.features = torch.empty(nbytes, dtype=torch.uint8, device="spyre") if nbytes else None


class Training:
    """A rank's model, and the steps."""

    def __init__(self, rank: int, objects: int) -> None:
        torch.manual_seed(0)
        self.rank = rank
        self.heap = [[number] for number in range(objects)]
        self.records: deque[list[list[int]]] = deque(maxlen=RECORD_STEPS)
        layers = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to("spyre")
        self.model = nn.parallel.DistributedDataParallel(layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.batch = torch.randn(256, 256, device="spyre")

    def step(self, *, garbage: bool) -> None:
        state = StepState(GARBAGE_BYTES[self.rank] if garbage else 0)
        self.records.append([[number] for number in range(RECORDS[self.rank])])
        self.optimizer.zero_grad()
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()
        if not garbage:
            state.me = None


class Turn:
    """Steps in one manner, after a warm-up: their times, and the collections that ran, whoever started them."""

    def __init__(self) -> None:
        self.processor_s: list[float] = []
        self.collections = [0, 0, 0]
        self.emergencies = -emergencies()

    def run(self, training: Training, end_of_step: Callable[[], object], steps: int, *, garbage: bool) -> None:
        gc.callbacks.insert(1, self.seen)
        for _ in range(steps):
            started = time.process_time()
            training.step(garbage=garbage)
            end_of_step()
            self.processor_s.append(time.process_time() - started)
        gc.callbacks.remove(self.seen)
        self.emergencies += emergencies()

    def seen(self, phase: str, info: dict[str, int]) -> None:
        self.collections[info["generation"]] += phase == "stop"


def emergencies() -> int:
    return torch.spyre.memory.pressure_stats()["events"]


def nothing() -> None:
    pass


@contextlib.contextmanager
def without_collector() -> Iterator[Callable[[], object]]:
    gc.disable()
    yield nothing
    gc.enable()


@contextlib.contextmanager
def automatic() -> Iterator[Callable[[], object]]:
    yield nothing


@contextlib.contextmanager
def manual() -> Iterator[Callable[[], object]]:
    gc.disable()
    floor = torch.spyre.memory_allocated()

    def collect_when_grown() -> None:
        if torch.spyre.memory_allocated() - floor >= LIMIT_BYTES:
            gc.collect()

    yield collect_when_grown
    gc.enable()


@contextlib.contextmanager
def plan(**arguments: Any) -> Iterator[Callable[[], object]]:
    with planned(warmup_steps=WARMUP_STEPS, young_bytes=LIMIT_BYTES, **arguments) as entered:
        yield entered.step


MANNERS: dict[str, Callable[[], contextlib.AbstractContextManager[Callable[[], object]]]] = {
    "quiet": without_collector,
    "automatic": automatic,
    "manual": manual,
    "together": lambda: plan(freeze=False, full_bytes=LIMIT_BYTES, time_share=1),
    "planned": plan,
}


def take_turn(training: Training, manner: str, steps: int) -> Turn:
    garbage = manner != "quiet"
    gc.collect()
    with MANNERS[manner]() as end_of_step:
        for _ in range(WARMUP_STEPS):
            training.step(garbage=garbage)
            end_of_step()
        turn = Turn()
        turn.run(training, end_of_step, steps, garbage=garbage)
    return turn


def rank_main(rank: int, rendezvous: str, arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("spyre", init_method=rendezvous, rank=rank, world_size=RANKS)
    training = Training(rank, arguments.objects)
    rounds: list[dict[str, list[Turn]]] = []
    for _ in range(arguments.rounds + 1):
        turns: dict[str, list[Turn]] = {}
        for manner in MANNERS:
            turns[manner] = [Turn() for _ in range(RANKS)]
            dist.all_gather_object(turns[manner], take_turn(training, manner, arguments.steps))
        rounds.append(turns)
    if rank == 0:
        report(rounds[1:], arguments)  # The first warms up.
    dist.destroy_process_group()


def slower_ms(turns: list[Turn]) -> list[float]:
    """Of each step, the milliseconds of the rank that needed more."""
    return [max(each) * 1e3 for each in zip(*(turn.processor_s for turn in turns), strict=True)]


def report(rounds: list[dict[str, list[Turn]]], arguments: argparse.Namespace) -> None:
    print(f"{arguments.steps} steps in each of {len(rounds)} rounds, {arguments.objects:,} live objects on each rank")
    print(
        f"{'':<12} {'ms a step':>10} {'over quiet':>11} {'longest ms':>11}  collections of each rank in the last round"
    )
    figures: dict[str, dict[str, Any]] = {}
    for manner in MANNERS:
        steps = [slower_ms(turns[manner]) for turns in rounds]
        ratios = [sum(ours) / sum(slower_ms(turns["quiet"])) for ours, turns in zip(steps, rounds, strict=True)]
        counts = [[(turn.collections, turn.emergencies) for turn in turns[manner]] for turns in rounds]
        figures[manner] = {
            "step_ms": statistics.median(statistics.fmean(each) for each in steps),
            "over_quiet": statistics.median(ratios),
            "over_quiet_of_rounds": ratios,
            "longest_ms": statistics.median(max(each) for each in steps),
            "collections_by_generation_and_emergencies": counts,
        }
        step, ratio, longest = (figures[manner][name] for name in ("step_ms", "over_quiet", "longest_ms"))
        print(f"{manner:<12} {step:10.2f} {ratio:11.2f} {longest:11.1f}  {described(counts[-1])}")
    write_summary({f"planned.{manner}": each["over_quiet"] for manner, each in figures.items() if manner != "quiet"})
    details = SUMMARY.with_name("planned.json")
    details.write_text(json.dumps({"machine": machine(), **vars(arguments), "manners": figures}, indent=2) + "\n")


def described(ranks: list[tuple[list[int], int]]) -> str:
    texts = []
    for (youngest, young, full), under_pressure in ranks:
        texts.append(f"{youngest + young} young, {full} full, {under_pressure} under pressure")
    return " | ".join(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--objects", type=int, default=400_000, help="in the live heap of each rank")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = f"file://{Path(folder) / 'rendezvous'}"
        torch.multiprocessing.spawn(rank_main, (rendezvous, arguments), nprocs=RANKS)


if __name__ == "__main__":
    main()
