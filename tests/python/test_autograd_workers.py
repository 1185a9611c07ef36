"""Autograd's workers at exit: the package waits until they have let go of Python."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import RunScript
from torch_spyre import _autograd_workers


@pytest.mark.parametrize("devices", [1, 4])
def test_the_end_right_after_a_backward(run_script: RunScript, devices: int) -> None:
    # The main thread keeps the interpreter until it finalizes, so a worker that still wants it must be waited for.
    script = """
    import sys, torch
    weights = torch.ones(3, device="spyre", requires_grad=True)
    sys.setswitchinterval(1000)
    (weights * 2).sum().backward()
    """
    run_script(script, env={"TORCH_SPYRE_ALLOC_CONF": f"device_memory:1MiB,devices:{devices}"}).check()


class Worker:
    """What Linux would say of a worker, each time it is asked; the last state stays."""

    def __init__(self, tasks: Path, *calls: str) -> None:
        folder = tasks / "1"
        folder.mkdir()
        self.looks = 0
        self.calls: Iterator[str] = iter(calls)
        self.files = {folder / "comm": "pt_autograd_0", folder / "status": "voluntary_ctxt_switches:\t7"}

    def read(self, file: Path) -> str:
        if file.name == "syscall":
            self.looks += 1
            self.files[file] = next(self.calls, self.files.get(file, ""))
        return self.files[file]


FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine(), "none")
RESTING = f"{FUTEX} 0x1000 0x189 0x0 0x0 0x0 0xffffffff 0x2000 0x3000"
WANTS_PYTHON = f"{FUTEX} 0x1000 0x189 0x0 0x2100 0x0 0xffffffff 0x2000 0x3000"


@pytest.mark.skipif(FUTEX == "none", reason="the number of the system call is not known for this processor")
@pytest.mark.parametrize(
    ("calls", "looks"),
    [
        ([RESTING], 2),
        (["running", WANTS_PYTHON, RESTING], 4),
        ([RESTING, "running", RESTING], 4),
        ([""], 1),  # A system that does not say.
    ],
)
def test_workers_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[str], looks: int) -> None:
    worker = Worker(tmp_path, *calls)
    monkeypatch.setattr(_autograd_workers, "_TASKS", tmp_path)
    monkeypatch.setattr(_autograd_workers, "_read", worker.read)
    _autograd_workers.rest(1)
    assert worker.looks == looks


def test_workers_are_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(tmp_path, WANTS_PYTHON)
    monkeypatch.setattr(_autograd_workers, "_TASKS", tmp_path)
    monkeypatch.setattr(_autograd_workers, "_read", worker.read)
    monkeypatch.setattr(_autograd_workers, "LONGEST_SECONDS", 0.02)
    began = time.monotonic()
    _autograd_workers.rest(1)
    assert time.monotonic() - began >= 0.02
    assert worker.looks > 1


def test_a_device_whose_worker_has_not_started_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(tmp_path, RESTING)
    monkeypatch.setattr(_autograd_workers, "_TASKS", tmp_path)
    monkeypatch.setattr(_autograd_workers, "_read", worker.read)
    monkeypatch.setattr(_autograd_workers, "LONGEST_SECONDS", 0.02)
    _autograd_workers.rest(2)
    assert worker.looks > 2
