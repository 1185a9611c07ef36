"""Measure what the device `spyre` costs over the CPU device, and what a rescue costs over a plain collection.

Both sides of a ratio run in this process, turn by turn, after warm passes. A ratio is our median over the
peer's, so lower is better. Puts the ratios into target/bench/summary.json, beside those of benches/allocator.

    torch.empty.cpu             torch.empty of 64 KiB, and its free
    torch.small_op.cpu          a + b of 4 x 4 floats
    torch.large_op.cpu          a + b of 16 MiB of floats each
    pressure.old_over_collect   an allocation rescued by collecting garbage in the oldest generation, over
                                one gc.collect() of the same garbage, with a million live Python objects
"""

import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TORCH_SPYRE_ALLOC_CONF"] = "device_memory:256MiB"

import torch

SUMMARY = Path(__file__).resolve().parents[2] / "target/bench/summary.json"
ROUNDS = 15
LIVE_OBJECTS = 1_000_000
GARBAGE_BYTES = 200 << 20

Measurement = Callable[[], float]


def seconds_per_call(function: Callable[[], Any], calls: int) -> Measurement:
    def measure() -> float:
        started = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - started) / calls

    return measure


def ratio(name: str, ours: Measurement, peer: Measurement, rounds: int = ROUNDS) -> float:
    """Return the median of `ours` over the median of `peer`, measured in turns after two warm passes."""
    for _ in range(2):
        ours()
        peer()
    pairs = [(ours(), peer()) for _ in range(rounds)]
    our_median, peer_median = (statistics.median(side) for side in zip(*pairs, strict=True))
    result: float = our_median / peer_median
    print(
        f"{name:<28} {our_median * 1e6:12.2f} us {peer_median * 1e6:12.2f} us   ratio {result:.3f}",
        flush=True,
    )
    return result


def empty(device: str) -> Measurement:
    return seconds_per_call(lambda: torch.empty(1 << 14, device=device), 5_000)


def add(device: str, shape: tuple[int, ...], calls: int) -> Measurement:
    left, right = torch.ones(shape, device=device), torch.ones(shape, device=device)
    return seconds_per_call(lambda: left + right, calls)


def leave_old_garbage() -> None:
    """Leave a dead cycle in the oldest generation that holds most of the device."""

    class Owner:
        pass

    owner: Any = Owner()
    owner.itself = owner
    owner.tensor = torch.empty(GARBAGE_BYTES, dtype=torch.uint8, device="spyre")
    gc.collect()  # While the owner lives: it ages to the oldest generation.


def rescue() -> float:
    leave_old_garbage()
    before = torch.spyre.memory.pressure_stats()["rescued"]
    started = time.perf_counter()
    torch.empty(GARBAGE_BYTES, dtype=torch.uint8, device="spyre")
    elapsed = time.perf_counter() - started
    if torch.spyre.memory.pressure_stats()["rescued"] != before + 1:
        raise AssertionError("the allocation was served without a rescue: nothing was measured")
    return elapsed


def plain_collect() -> float:
    leave_old_garbage()
    started = time.perf_counter()
    gc.collect()
    elapsed = time.perf_counter() - started
    if torch.spyre.memory_allocated() >= GARBAGE_BYTES:
        raise AssertionError("gc.collect() did not free the garbage: nothing was measured")
    return elapsed


def pressure_ratio() -> float:
    live = [[] for _ in range(LIVE_OBJECTS)]  # type: ignore[var-annotated]
    result = ratio("pressure.old_over_collect", rescue, plain_collect)
    del live
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
    """Replace the keys measured here and keep what benches/allocator has put there."""
    summary: dict[str, Any] = json.loads(SUMMARY.read_text()) if SUMMARY.exists() else {}
    summary["machine"] = summary.get("machine", {}) | machine()
    summary["ratios"] = summary.get("ratios", {}) | ratios
    SUMMARY.parent.mkdir(parents=True, exist_ok=True)
    SUMMARY.write_text(json.dumps(summary, indent=2) + "\n")


def main() -> None:
    torch.set_num_threads(1)
    gc.disable()
    small, large = (4, 4), (4 << 20,)
    print(f"{'':<28} {'spyre or ours':>15} {'peer':>15}")
    ratios = {
        "torch.empty.cpu": ratio("torch.empty.cpu", empty("spyre"), empty("cpu")),
        "torch.small_op.cpu": ratio("torch.small_op.cpu", add("spyre", small, 5_000), add("cpu", small, 5_000)),
        "torch.large_op.cpu": ratio("torch.large_op.cpu", add("spyre", large, 10), add("cpu", large, 10)),
        "pressure.old_over_collect": pressure_ratio(),
    }
    write_summary(ratios)
    print(f"written to {SUMMARY.relative_to(Path.cwd()) if SUMMARY.is_relative_to(Path.cwd()) else SUMMARY}")


if __name__ == "__main__":
    main()
