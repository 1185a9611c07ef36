"""A program that lets others watch its memory, and `flexmem watch` on it.

python examples/history/watched.py   # with flexmem on the PATH; it is installed beside Python

Most programs only set TORCH_SPYRE_ALLOC_CONF=history:100000,stream_socket:true, and somebody else runs
`flexmem watch PID` in another terminal. Here the program starts the watch itself, to show what it says.
"""

import contextlib
import gc
import os
import subprocess

os.environ["TORCH_SPYRE_ALLOC_CONF"] = "device_memory:64MiB,history:100000,stream_socket:true"

import torch

MIB = 1 << 20
HERE = os.path.dirname(os.path.abspath(__file__)) + "/"


class Step:
    """Holds an activation, and itself: only the collector frees it."""

    def __init__(self):
        self.itself = self
        self.activation = torch.ones(6 * MIB, dtype=torch.uint8, device="spyre")


def train(steps):
    kept = []
    for _ in range(steps):
        Step()
        kept.append(torch.zeros(MIB // 4, device="spyre"))
    return kept


def main():
    gc.disable()
    watch = ["flexmem", "watch", str(os.getpid())]
    with subprocess.Popen([*watch, "--interval", "0.1"], stdout=subprocess.PIPE, text=True) as watching:
        watching.stdout.readline()  # Now it watches.
        kept = train(steps=12)
        with contextlib.suppress(torch.OutOfMemoryError):
            torch.empty(60 * MIB, dtype=torch.uint8, device="spyre")
        asked = subprocess.run([*watch, "--once"], check=True, capture_output=True, text=True)
        print(asked.stdout.replace(HERE, ""), end="")
        torch.spyre.memory._record_memory_history(enabled=None)  # Ends the stream, and so the watch.
        print("\nWhat the other watch said, but for the figures of each interval:")
        for line in watching.stdout:
            if "  live " not in line:
                print(line.replace(HERE, ""), end="")
    del kept


if __name__ == "__main__":
    main()
