"""Train on a device that is too small, twice: without and with garbage collection under memory pressure.

The training program is train.py; each run has a process of its own and a simulated device of 64 MiB. The
first run must run out of memory; the second must finish, recognise at least 95 % of the test images, and have
been rescued by a collection at least once. Otherwise this program says so and ends with status 1. A picture
per run is written to demo-output/.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import chart

DEVICE_MEMORY = "64MiB"
ACCURACY_NEEDED = 0.95
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUTPUT = ROOT / "demo-output"


def headline(text: str) -> None:
    print(f"\n{text}\n{'─' * len(text)}", flush=True)


def run(policy: str) -> dict[str, Any]:
    """Run train.py with the garbage-collection policy, and return what it recorded."""
    record = OUTPUT / f"gc-{policy}.json"
    record.unlink(missing_ok=True)
    command = [sys.executable, str(HERE / "train.py"), "--gc", policy, "--record", str(record)]
    environment = os.environ | {"TORCH_SPYRE_ALLOC_CONF": f"device_memory:{DEVICE_MEMORY}"}
    status = subprocess.run(command, env=environment, check=False).returncode
    if status != 0:
        sys.exit(f"demo: the training program ended with status {status}")
    result: dict[str, Any] = json.loads(record.read_text())
    return result


def report_pressure(pressure: dict[str, int]) -> None:
    reclaimed_mib = pressure["reclaimed_bytes"] / 2**20
    total_ms = pressure["collection_time_ns"] / 1e6
    longest_ms = pressure["collection_max_ns"] / 1e6
    print("What the allocator did (torch.spyre.memory.pressure_stats()):")
    print(f"  device exhausted      {pressure['events']} times")
    print(f"  rescued               {pressure['rescued']}, failed {pressure['failed']}")
    print(f"  collections           {pressure['collections.young']} young, {pressure['collections.full']} full")
    print(f"  reclaimed             {reclaimed_mib:.1f} MiB of device memory")
    print(f"  time in collections   {total_ms:.1f} ms, the longest {longest_ms:.1f} ms")


def verdict(without: dict[str, Any], with_gc: dict[str, Any]) -> list[str]:
    """Return what did not come out as it should."""
    problems = []
    if "out_of_memory" not in without:
        problems.append("the first run did not run out of memory")
    if "out_of_memory" in with_gc:
        problems.append("the second run ran out of memory")
    elif with_gc["accuracy"] < ACCURACY_NEEDED:
        problems.append(f"the accuracy is {with_gc['accuracy']:.1%}, less than {ACCURACY_NEEDED:.0%}")
    if with_gc["pressure"]["rescued"] == 0:
        problems.append("no allocation was rescued in the second run")
    return problems


def main() -> None:
    OUTPUT.mkdir(exist_ok=True)
    print(f"Training on scikit-learn's handwritten digits, on a simulated device of {DEVICE_MEMORY}.")
    print("Every step leaves a dead reference cycle that holds device tensors, and gc.disable() is in force.")

    headline('Run 1: the allocator may not collect garbage (gc="off")')
    without = run("off")

    headline("Run 2: the allocator collects garbage when the device is exhausted (the default)")
    with_gc = run("always")
    report_pressure(with_gc["pressure"])

    pictures = {OUTPUT / "run-1-gc-off.png": without, OUTPUT / "run-2-gc-always.png": with_gc}
    titles = [
        "Run 1, no collection: dead tensors fill the device",
        "Run 2, collection under pressure: training goes on",
    ]
    for (path, result), title in zip(pictures.items(), titles, strict=True):
        chart.draw(result, title, path)

    headline("Result")
    problems = verdict(without, with_gc)
    if problems:
        sys.exit("demo: FAILED: " + "; ".join(problems))
    print(
        f"Run 1 stopped at step {without['step']} of {without['steps']}. Run 2 finished all of them, "
        f"and recognises {with_gc['accuracy']:.1%} of the test images."
    )
    print("Pictures: " + ", ".join(str(path.relative_to(ROOT)) for path in pictures))
    print("Your own program: TORCH_SPYRE_ALLOC_CONF=device_memory:1GiB .venv/bin/python your_program.py")


if __name__ == "__main__":
    main()
