"""Measure what importing a large snapshot of PyTorch takes, beside Python's own `pickle.load` of the same file.

The file is made by crates/flexmem/examples/large_snapshot.rs in the folder for temporary files, and goes away in the
end. The two take turns, each in a process of its own; the system says what a process took: the time of the processor,
since others may be at work, and the most memory that it had resident. The figures are medians, with the least and the
most of all rounds beside them.

    large_snapshot.py [EVENTS [ROUNDS]]     1,270,000 events are 1 GiB, for which pickle.load takes 7 GB of memory

Prints JSON: bytes, seconds, and pickle.load's figures over flexmem's. Needs `scripts/extension.sh`.
"""

import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
EVENTS = 1_270_000
ROUNDS = 3
LOAD = "import pickle, sys\nwith open(sys.argv[1], 'rb') as file: pickle.load(file)"


class Taken(NamedTuple):
    processor_seconds: float
    wall_seconds: float
    peak_bytes: int


def run(command: list[str | Path]) -> Taken:
    started = time.perf_counter()
    child = subprocess.Popen(command)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)  # It has been waited for.
    wall_seconds = time.perf_counter() - started
    if child.returncode:
        sys.exit(f"error: {' '.join(map(str, command))} failed with status {child.returncode}")
    return Taken(usage.ru_utime + usage.ru_stime, wall_seconds, usage.ru_maxrss << 10)


def medians(rounds: list[Taken]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in by_name(rounds).items()}


def spans(rounds: list[Taken]) -> dict[str, tuple[float, float]]:
    return {f"{name}_span": (min(values), max(values)) for name, values in by_name(rounds).items()}


def by_name(rounds: list[Taken]) -> dict[str, list[float]]:
    return {name: [taken[place] for taken in rounds] for place, name in enumerate(Taken._fields)}


def arguments(given: list[str]) -> tuple[int, int]:
    numbers = [int(text) if text.isdecimal() else 0 for text in given]
    if len(numbers) > 2 or 0 in numbers:
        sys.exit(f"error: expected numbers of EVENTS and ROUNDS from 1, found {' '.join(given)}")
    events, rounds = [*numbers, *(EVENTS, ROUNDS)[len(numbers) :]]
    return events, rounds


def make(file: Path, events: int) -> None:
    build = ["cargo", "run", "--quiet", "--release", "--package", "flexmem", "--example", "large_snapshot"]
    with file.open("wb") as output:
        subprocess.run([*build, str(events)], cwd=ROOT, stdout=output, check=True)


def main() -> None:
    events, rounds = arguments(sys.argv[1:])
    flexmem = Path(sysconfig.get_path("scripts")) / "flexmem"
    with tempfile.TemporaryDirectory() as scratch:
        snapshot, trace = Path(scratch) / "large.pickle", Path(scratch) / "large.trace"
        make(snapshot, events)
        ours, peers = [], []
        for _ in range(rounds):
            ours.append(run([flexmem, "import", snapshot, "-o", trace]))
            peers.append(run([sys.executable, "-c", LOAD, snapshot]))
        sizes = {"file_bytes": snapshot.stat().st_size, "trace_bytes": trace.stat().st_size}
    import_figures, load_figures = medians(ours), medians(peers)
    ratios = {name: round(load_figures[name] / import_figures[name], 2) for name in Taken._fields}
    figures = {
        "flexmem_import": import_figures | spans(ours),
        "pickle_load": load_figures | spans(peers),
        "ratios": ratios,
    }
    print(json.dumps({"events": events, "rounds": rounds, **sizes, **figures}, indent=2))


if __name__ == "__main__":
    main()
