"""What the benchmarks in Python share: ratios measured in turns, and the summary that they are written to."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SUMMARY = Path(__file__).resolve().parents[2] / "target/bench/summary.json"
ROUNDS = 15

Measurement = Callable[[], float]
"""Measures once; seconds."""


def seconds_per_call(function: Callable[[], Any], calls: int) -> Measurement:
    def measure() -> float:
        started = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - started) / calls

    return measure


def print_heading() -> None:
    print(f"{'':<44} {'spyre or ours':>15} {'peer':>15}")


def ratio(name: str, ours: Measurement, peer: Measurement, rounds: int = ROUNDS) -> float:
    """Return the median of `ours` over the median of `peer`, measured in turns after two warm passes."""
    for _ in range(2):
        ours()
        peer()
    pairs = [(ours(), peer()) for _ in range(rounds)]
    our_median, peer_median = (statistics.median(side) for side in zip(*pairs, strict=True))
    result: float = our_median / peer_median
    print(
        f"{name:<44} {our_median * 1e6:12.2f} us {peer_median * 1e6:12.2f} us   ratio {result:.3f}",
        flush=True,
    )
    return result


def machine() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def write_summary(ratios: dict[str, float]) -> None:
    """Replace the keys measured here and keep what other benchmarks have put there."""
    summary: dict[str, Any] = json.loads(SUMMARY.read_text()) if SUMMARY.exists() else {}
    summary["machine"] = summary.get("machine", {}) | machine()
    summary["ratios"] = summary.get("ratios", {}) | ratios
    SUMMARY.parent.mkdir(parents=True, exist_ok=True)
    SUMMARY.write_text(json.dumps(summary, indent=2) + "\n")
    print(f"written to {SUMMARY.relative_to(Path.cwd()) if SUMMARY.is_relative_to(Path.cwd()) else SUMMARY}")
