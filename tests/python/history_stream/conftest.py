"""`flexmem`, folders for sockets and processes for these tests, each of which ends its recording."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Script, ScriptServer
from stream_tools import FLEXMEM, PATIENCE_S, Flexmem, RunChild, Watcher, memory


@pytest.fixture
def flexmem() -> Flexmem:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([FLEXMEM, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    return run


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this test's own for sockets."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "flexmem"


@pytest.fixture
def child(script_server: ScriptServer, tmp_path: Path) -> RunChild:
    """Runs Python code in a fresh process whose history is recorded, on a device of 64 MiB."""

    def run(code: str, settings: str = "") -> Script:
        conf = f"device_memory:64MiB,history:10000{settings}"
        return script_server.run(code, tmp_path, {"TORCH_SPYRE_ALLOC_CONF": conf, "XDG_RUNTIME_DIR": str(tmp_path)})

    return run


@pytest.fixture
def watch() -> Iterator[Callable[[int], Watcher]]:
    """Starts a watch of a process."""
    watchers: list[Watcher] = []

    def start(process: int) -> Watcher:
        watchers.append(Watcher(process))
        return watchers[-1]

    yield start
    for watcher in watchers:
        watcher.kill()


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    memory._record_memory_history(enabled=None)
