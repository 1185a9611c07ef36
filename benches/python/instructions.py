"""Count the instructions of a small operator on `spyre` and on the CPU, with callgrind.

instructions.py             a + b of 4 x 4 floats, called from Python
instructions.py EXPRESSION  another one, of `a`, `b` and `torch`
"""

import gc
import os
import sys

from callgrind import Switch, counted, is_counting


def count(expression: str) -> None:
    """Run under valgrind: make the calls, counted, on each device."""
    os.environ["TORCH_SPYRE_ALLOC_CONF"] = "device_memory:256MiB"
    import torch

    switch = Switch()
    torch.set_num_threads(1)
    gc.disable()
    code = compile(expression, "expression", "eval")

    def repeat(calls: int) -> None:
        for _ in range(calls):
            eval(code, names)

    for device in ("cpu", "spyre"):
        names = {"torch": torch, "a": torch.ones(4, 4, device=device), "b": torch.ones(4, 4, device=device)}
        switch.count(device, repeat)


def main() -> None:
    expression = sys.argv[1] if len(sys.argv) > 1 else "a + b"
    if is_counting():
        count(expression)
        return
    found = counted(__file__, expression)
    spyre, cpu = found["spyre"], found["cpu"]
    print(f"{expression}: {spyre:.0f} instructions on spyre, {cpu:.0f} on the CPU, ratio {spyre / cpu:.2f}")


if __name__ == "__main__":
    main()
