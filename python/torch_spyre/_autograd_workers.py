"""At exit: waits until autograd's workers, one for each device, have let go of Python.

CPython before 3.14 unwinds a thread that waits for the interpreter when that finalizes, and unwinding through PyTorch
aborts the process, as it does with CUDA devices. Two things make a worker wait for the interpreter after the backward
that needed it has returned: it attaches once when it starts, and the first backward starts the workers of all devices
but waits for its own only; and after each backward it drops the Python state that the graph has carried. PyTorch does
not tell when either is done. Linux does: a worker with nothing to do waits on a futex without a time limit, one that
wants the interpreter waits with one, which CPython uses to ask the owner to let go.
"""

from __future__ import annotations

import platform
import time
from pathlib import Path

LONGEST_SECONDS = 1.0
"""Workers that are still busy then belong to a backward that goes on while the process exits."""

_POLL_SECONDS = 0.001

_BLIND_SECONDS = 0.02
"""What is waited where the system does not say what threads do. A worker needs the interpreter for microseconds."""

_TASKS = Path("/proc/self/task")

_FUTEX = {"x86_64": "202", "aarch64": "98"}


def rest(device_count: int) -> None:
    """Returns when no worker needs the interpreter any more, or after LONGEST_SECONDS. Lets go of it meanwhile."""
    deadline = time.monotonic() + LONGEST_SECONDS
    before: dict[Path, str | None] = {}
    while workers := _workers():
        now = {worker: _resting(worker) for worker in workers}
        if "" in now.values():
            time.sleep(_BLIND_SECONDS)
            return
        # The same in two looks: a worker may wait for another lock in one.
        if len(workers) >= device_count and all(state and before.get(worker) == state for worker, state in now.items()):
            return
        if time.monotonic() > deadline:
            return
        before = now
        time.sleep(_POLL_SECONDS)


def _workers() -> list[Path]:
    """The workers that have attached once: PyTorch names them after that."""
    return [task for task in _TASKS.glob("*") if _read(task / "comm").startswith("pt_autograd")]


def _resting(worker: Path) -> str | None:
    """What a worker waits for and how often it has waited, if that is without a time limit. Empty if unknown."""
    call = _read(worker / "syscall").split()
    if not call or platform.machine() not in _FUTEX:
        return ""
    if call[0] != _FUTEX[platform.machine()] or int(call[4], 16) != 0:  # The fourth argument is the limit.
        return None
    switches = [line for line in _read(worker / "status").splitlines() if line.startswith("voluntary")]
    return " ".join([*call, *switches])


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:  # The thread has ended, or the system keeps this to itself.
        return ""
