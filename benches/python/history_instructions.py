"""Count what recording an event of history costs, in instructions, with callgrind: without a stack, with stacks of
several depths, and beside them PyTorch's own recorder, which CUDA's history uses, on the same stacks in the same run.

An event is half of what a pair of `torch.empty` and the end of its tensor costs more than with history off: a pair is
two events, each with its stack. The ring is full, and the stack has been seen before. PyTorch's recorder is called from
Python, which includes the making and the end of one small object; the call itself is taken off.

    history_instructions.py          a table
    history_instructions.py --json   the same as JSON, with what was measured
"""

import gc
import json
import os
import platform
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from callgrind import Switch, counted, is_counting

DEPTHS = (5, 20, 50)
EVENTS = 64
"""Places in the ring: few, so that it is full at once."""


def count() -> None:
    """Run under valgrind: everything that is counted, each at its depth."""
    os.environ["TORCH_SPYRE_ALLOC_CONF"] = "device_memory:64MiB"
    import torch

    gc.disable()
    threading.excepthook = fail
    switch = Switch()
    memory: Any = torch.spyre.memory
    for depth in DEPTHS:
        at_depth(depth, partial(switch.count, f"off.{depth}", pairs(torch.empty)))
        memory._record_memory_history(max_entries=EVENTS, context=None)
        at_depth(depth, partial(switch.count, f"events.{depth}", pairs(torch.empty)))
        memory._record_memory_history(max_entries=EVENTS, context="all")
        at_depth(depth, partial(switch.count, f"stacks.{depth}", pairs(torch.empty)))
        memory._record_memory_history(enabled=None)
        gather = torch._C._profiler.gather_traceback
        at_depth(depth, partial(switch.count, f"pytorch.{depth}", calls(gather, True, False, False)))
        at_depth(depth, partial(switch.count, f"call.{depth}", calls(max, True, False, False)))


def pairs(empty: Callable[..., object]) -> Callable[[int], None]:
    """Allocates and frees, so many times."""

    def repeat(calls: int) -> None:
        for _ in range(calls):
            empty(256, device="spyre")

    return repeat


def calls(function: Callable[..., object], *arguments: object) -> Callable[[int], None]:
    def repeat(calls: int) -> None:
        for _ in range(calls):
            function(*arguments)

    return repeat


def at_depth(depth: int, then: Callable[[], None]) -> None:
    """Calls `then`, in which `Switch.count` calls the function that it counts, on a thread of its own: that function is
    the `depth`-th frame of the stack, 5 at least.
    """
    thread = threading.Thread()
    # Two frames of `threading`, those below, and two that count.
    thread.run = partial(below, depth - 5, then)  # type: ignore[method-assign]
    thread.start()
    thread.join()


def below(frames: int, then: Callable[[], None]) -> None:
    """Calls `then` with so many more frames between."""
    if frames == 0:
        then()
    else:
        below(frames - 1, then)


def fail(arguments: threading.ExceptHookArgs) -> None:
    traceback.print_exception(arguments.exc_value)
    os._exit(1)


def results(found: dict[str, float]) -> dict[str, Any]:
    rows = {}
    for depth in DEPTHS:
        event = (found[f"events.{depth}"] - found[f"off.{depth}"]) / 2
        with_stack = (found[f"stacks.{depth}"] - found[f"off.{depth}"]) / 2
        rows[str(depth)] = {
            "event": round(event),
            "event_with_stack": round(with_stack),
            "stack": round(with_stack - event),
            "pytorch_stack": round(found[f"pytorch.{depth}"] - found[f"call.{depth}"]),
        }
    return {"python": platform.python_version(), "unit": "instructions", "frames": rows}


def table(rows: dict[str, dict[str, int]]) -> str:
    lines = [f"{'instructions of an event':<26}{'no stack':>10}{'with stack':>12}{'its stack':>11}{'PyTorch':>10}"]
    for depth, row in rows.items():
        ratio = row["stack"] / row["pytorch_stack"]
        lines.append(
            f"{depth + ' frames':<26}{row['event']:>10}{row['event_with_stack']:>12}{row['stack']:>11}"
            f"{row['pytorch_stack']:>10}   ratio {ratio:.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    if is_counting():
        count()
        return
    measured = results(counted(__file__))
    print(json.dumps(measured, indent=2) if "--json" in sys.argv[1:] else table(measured["frames"]))


if __name__ == "__main__":
    main()
