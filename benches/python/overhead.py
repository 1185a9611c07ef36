"""Measure what the device `spyre` costs over the CPU device.

Both sides of a ratio run in this process, turn by turn, after warm passes. A ratio is our median over the
peer's, so lower is better. Puts the ratios into target/bench/summary.json.

    torch.empty.cpu             torch.empty of 64 KiB, and its free
    torch.small_op.cpu          a + b of 4 x 4 floats
    torch.large_op.cpu          a + b of 16 MiB of floats each
"""

import gc
import os

os.environ["TORCH_SPYRE_ALLOC_CONF"] = "device_memory:256MiB"

import torch

from measure import Measurement, print_heading, ratio, seconds_per_call, write_summary


def empty(device: str) -> Measurement:
    return seconds_per_call(lambda: torch.empty(1 << 14, device=device), 5_000)


def add(device: str, shape: tuple[int, ...], calls: int) -> Measurement:
    left, right = torch.ones(shape, device=device), torch.ones(shape, device=device)
    return seconds_per_call(lambda: left + right, calls)


def main() -> None:
    torch.set_num_threads(1)
    gc.disable()
    small, large = (4, 4), (4 << 20,)
    print_heading()
    write_summary(
        {
            "torch.empty.cpu": ratio("torch.empty.cpu", empty("spyre"), empty("cpu")),
            "torch.small_op.cpu": ratio("torch.small_op.cpu", add("spyre", small, 5_000), add("cpu", small, 5_000)),
            "torch.large_op.cpu": ratio("torch.large_op.cpu", add("spyre", large, 10), add("cpu", large, 10)),
        }
    )


if __name__ == "__main__":
    main()
