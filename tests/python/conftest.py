"""What all Python tests share: a watchdog for each test, running scripts in a fresh interpreter, comparing with CPU."""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TextIO

import pytest

# A small device, so that pressure is cheap to reach. Read when torch is imported. TEST_ALLOC_CONF adds settings for a
# whole run, such as cycles:true.
os.environ["TORCH_SPYRE_ALLOC_CONF"] = ",".join(
    filter(None, ["device_memory:64MiB", os.environ.get("TEST_ALLOC_CONF")])
)

import torch

FREE_THREADED: bool = not getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether other Python threads run while this one does. What then differs is said in pressure_tools.py."""

WATCHDOG_SECONDS = 120
"""A test that takes longer has hung: all stacks are dumped and the run ends."""

ALL_SAMPLES_SECONDS = 1200
"""The same with `--all-samples`: of some operators the CPU's kernel alone takes minutes."""

SCRIPT_SECONDS = 60

SERVER = Path(__file__).parent / "script_server.py"

REAL_STDERR: pytest.StashKey[TextIO] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="short collections, fewer rounds; for scripts/repeat.sh")
    parser.addoption("--part", default="0/1", help="I/N: the tests of ops/ whose number leaves the remainder I")
    parser.addoption("--all-samples", action="store_true", help="every sample of every operator; for scripts/opinfo.sh")


def pytest_configure(config: pytest.Config) -> None:
    # The real standard error, which pytest does not capture yet: a capture is lost when the watchdog ends the process.
    config.stash[REAL_STDERR] = os.fdopen(os.dup(2), "w")


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[REAL_STDERR].close()


@pytest.fixture(autouse=True)
def watchdog(pytestconfig: pytest.Config) -> Iterator[None]:
    seconds = ALL_SAMPLES_SECONDS if pytestconfig.getoption("--all-samples") else WATCHDOG_SECONDS
    faulthandler.dump_traceback_later(seconds, exit=True, file=pytestconfig.stash[REAL_STDERR])
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class Script:
    """The result of a script. A negative `returncode` is the signal that ended it."""

    def __init__(self, returncode: int, out: str, err: str) -> None:
        self.returncode = returncode
        self.out = out
        self.err = err

    def check(self) -> str:
        """The standard output of a script that succeeded."""
        assert self.returncode == 0, f"exit status {self.returncode}\n{self.out}\n{self.err}"
        return self.out


RunScript = Callable[..., Script]


@pytest.fixture(scope="session")
def run_script() -> RunScript:
    """Runs Python code in a fresh interpreter, with environment variables on top of the current ones."""

    def run(
        code: str, *, env: Mapping[str, str] | None = None, stdin: str = "", seconds: float = SCRIPT_SECONDS
    ) -> Script:
        completed = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)],
            env={**os.environ, **(env or {})},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        return Script(completed.returncode, completed.stdout, completed.stderr)

    return run


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

    def run(self, code: str, folder: Path, env: Mapping[str, str]) -> Script:
        """Runs Python code in a child, with environment variables on top of the current ones; output by `folder`."""
        out, err = folder / "out", folder / "err"
        out.write_text("")
        err.write_text("")
        request = {"code": code, "env": {**env}, "seconds": SCRIPT_SECONDS - 10, "out": str(out), "err": str(err)}
        status = self.ask(request)
        return Script(status, out.read_text(), err.read_text())

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


TWO_DEVICES_PREAMBLE = """
import copy, gc, io, threading
import pytest, torch
from torch import nn
from torch.nn import functional
spyre, memory, MIB = torch.spyre, torch.spyre.memory, 1 << 20
a, b = (torch.arange(4.0, device=f"spyre:{index}") for index in (0, 1))
def block(index, nbytes=MIB):
    return torch.empty(nbytes, dtype=torch.uint8, device=f"spyre:{index}")
"""

OnTwoDevices = Callable[[str], str]


@pytest.fixture
def on_two_devices(script_server: ScriptServer, tmp_path: Path) -> OnTwoDevices:
    """Runs Python code where there are two devices of 64 MiB, with a tensor on each, `a` and `b`."""

    def run(code: str) -> str:
        env = {"TORCH_SPYRE_ALLOC_CONF": "devices:2,device_memory:64MiB"}
        return script_server.run(TWO_DEVICES_PREAMBLE + textwrap.dedent(code), tmp_path, env).check()

    return run


def on_both(function: Callable[..., object], *arguments: object) -> None:
    """Asserts that `function` gives the same on copies of `arguments` on CPU and on spyre.

    Results on spyre must be spyre tensors with the same strides; results may be tuples or lists. Arguments are changed
    by in-place functions; they are compared afterwards too.
    """
    on_cpu = [copied(argument, "cpu") for argument in arguments]
    on_spyre = [copied(argument, "spyre") for argument in arguments]
    expected = function(*on_cpu)
    actual = function(*on_spyre)
    assert_same(actual, expected)
    assert_same(on_spyre, on_cpu)


def copied(value: object, device: str) -> object:
    if isinstance(value, torch.Tensor):
        return value.detach().clone().to(device).requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(copied(each, device) for each in value)
    return value


def assert_same(actual: object, expected: object) -> None:
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor)
        assert actual.device == torch.device("spyre", 0)
        assert actual.stride() == expected.stride()
        torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)
    elif isinstance(expected, (list, tuple)):
        assert isinstance(actual, (list, tuple))
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
    else:
        assert actual == expected
