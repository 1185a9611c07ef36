"""Measure what taking the Python stack of an allocation costs beside PyTorch's own recorder, which CUDA's history uses.

Both take the same stack in this process, turn by turn. Ours is taken detached, as in an operator; PyTorch's is called
from Python, which adds the making of one small object. Puts the ratios into target/bench/summary.json.

    stacks.DEPTH.torch      a stack of so many frames that has been seen before
"""

import time
from functools import partial

import torch

from measure import Measurement, print_heading, ratio, write_summary
from torch_spyre import _C

CAPTURES = 5_000
DEPTHS = (5, 20, 50)


def at_depth(depth: int, measure: Measurement) -> float:
    """What `measure` returns, called below so many frames."""
    return measure() if depth == 0 else at_depth(depth - 1, measure)


def ours() -> float:
    return _C.testing.time_captures(CAPTURES) * 1e-9


def torchs() -> float:
    gather = torch._C._profiler.gather_traceback
    started = time.perf_counter()
    for _ in range(CAPTURES):
        gather(True, False, False)
    return (time.perf_counter() - started) / CAPTURES


def main() -> None:
    _C.testing.enable_stacks()
    assert _C.stacks_status()["mode"] == "direct", _C.stacks_status()
    print_heading()
    ratios = {}
    for depth in DEPTHS:
        name = f"stacks.{depth}.torch"
        ratios[name] = ratio(name, partial(at_depth, depth, ours), partial(at_depth, depth, torchs))
    write_summary(ratios)


if __name__ == "__main__":
    main()
