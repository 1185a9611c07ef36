"""What the scenarios share: a clean device before and after each, the counters, and scripts in forked processes."""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from conftest import SCRIPT_SECONDS, RunScript, Script
from pressure_tools import MIB, ROUNDS, Counters, fill, memory, testing

SERVER = Path(__file__).parent.parent / "script_server.py"


@pytest.fixture(scope="session", autouse=True)
def short_collections(pytestconfig: pytest.Config) -> Iterator[None]:
    """With --quick: collections that look at the tests' objects only, and take a fraction of the time."""
    if pytestconfig.getoption("quick"):
        gc.collect()
        gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def nothing_frozen(pytestconfig: pytest.Config) -> Iterator[None]:
    """For tests of what errors say: objects frozen by others are none of theirs."""
    gc.unfreeze()
    yield
    if pytestconfig.getoption("quick"):
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def clean_device() -> Iterator[None]:
    """The collector off, as training loops have it, and nothing on the device but what others keep."""
    gc.collect()
    gc.disable()
    policy = memory.get_pressure_policy()
    assert torch.spyre.mem_get_info()[1] == 64 * MIB
    yield
    memory.set_pressure_policy(**policy)
    gc.enable()
    gc.collect()
    testing.validate(0)


@pytest.fixture
def counters() -> Counters:
    memory.reset_pressure_stats()
    return Counters()


@pytest.fixture
def rounds(pytestconfig: pytest.Config) -> int:
    """How often a stress test goes round: fewer times where the whole suite is repeated."""
    return 5 if pytestconfig.getoption("quick") else ROUNDS


@pytest.fixture
def cache() -> list[torch.Tensor]:
    """Live memory, all of it. Without a GIL a little may be left of other threads' tensors."""
    filling: list[torch.Tensor] = []
    fill(filling)
    return filling


class ScriptServer:
    """The client of script_server.py."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, SERVER],
            env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def ask(self, request: Mapping[str, object]) -> int:
        """Runs a script; its exit status, or minus the signal that ended it, as it does one that hangs at exit."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        child = int(self.process.stdout.readline())
        ready, _, _ = select.select([self.process.stdout], [], [], SCRIPT_SECONDS)
        if not ready:
            os.killpg(child, signal.SIGKILL)
        return os.waitstatus_to_exitcode(int(self.process.stdout.readline()))

    def close(self) -> None:
        """Ends the server."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="session")
def script_server() -> Iterator[ScriptServer]:
    server = ScriptServer()
    yield server
    server.close()


PREAMBLE = """
import gc, os, sys, threading, torch
sys.path.insert(0, {tests!r})
from pressure_tools import *
gc.disable()
"""


@pytest.fixture
def fork_script(script_server: ScriptServer, tmp_path: Path) -> RunScript:
    """Runs Python code in a process of its own, with the names of pressure_tools, and the collector off."""

    def run(code: str, *, env: Mapping[str, str] | None = None) -> Script:
        out, err = tmp_path / "out", tmp_path / "err"
        out.write_text("")
        err.write_text("")
        preamble = PREAMBLE.format(tests=str(SERVER.parent))
        request = {"code": preamble + textwrap.dedent(code), "env": {**(env or {})}, "seconds": SCRIPT_SECONDS - 10}
        status = script_server.ask({**request, "out": str(out), "err": str(err)})
        return Script(status, out.read_text(), err.read_text())

    return run
