"""Tensors to be streamed, what a stream says of itself, and what `flexmem` says of it."""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import Script

memory = torch.spyre.memory

FLEXMEM = str(Path(sysconfig.get_path("scripts")) / "flexmem")
PATIENCE_S = 60
MIB = 1 << 20

Flexmem = Callable[..., subprocess.CompletedProcess[str]]
RunChild = Callable[..., Script]


def tensor(nbytes: int = MIB) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="spyre")


def dead_cycle(nbytes: int) -> None:
    holders: list[Any] = [tensor(nbytes)]
    holders.append(holders)


@contextlib.contextmanager
def left_to_pressure() -> Iterator[None]:
    """No collection comes by chance."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def stream() -> dict[str, Any]:
    described: dict[str, Any] = memory._history_stream()
    return described


def info(flexmem: Flexmem, file: Path) -> dict[str, Any]:
    printed = flexmem("info", "--json", str(file))
    assert printed.returncode == 0, printed.stderr
    answers: dict[str, Any] = json.loads(printed.stdout)
    return answers


def wait_until(is_reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Watcher:
    """`flexmem watch` on a process, with what it has printed so far."""

    def __init__(self, process: int) -> None:
        command = [FLEXMEM, "watch", str(process), "--interval", "0.05", "--json"]
        self.running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def moment(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next object that is as wanted."""
        assert self.running.stdout is not None
        for line in self.running.stdout:
            moment: dict[str, Any] = json.loads(line)
            if is_wanted(moment):
                return moment
        pytest.fail("the watch has ended before")

    def close(self) -> int:
        """Its exit status, when it has ended by itself."""
        assert self.running.stdout is not None
        self.running.stdout.read()
        return self.running.wait(PATIENCE_S)

    def kill(self) -> None:
        """Ends it, wherever it is."""
        self.running.kill()
        self.running.communicate()


Watch = Callable[[int], Watcher]


def first(moment: dict[str, Any]) -> dict[str, Any]:
    device: dict[str, Any] = moment["devices"][0]
    return device
