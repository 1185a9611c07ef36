"""The stream of the history: to a file and to `flexmem watch`, from a process that runs, ends, forks and runs out.

What is in a stream is read by `flexmem`, which also reads the streams of others.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pty
import select
import stat
import subprocess
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import RunScript, Script, ScriptServer

memory = torch.spyre.memory

FLEXMEM = str(Path(sysconfig.get_path("scripts")) / "flexmem")
PATIENCE_S = 60
MIB = 1 << 20

Flexmem = Callable[..., subprocess.CompletedProcess[str]]
RunChild = Callable[..., Script]


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


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    memory._record_memory_history(enabled=None)


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


def test_a_file_has_what_was_live_and_what_happened(tmp_path: Path, flexmem: Flexmem) -> None:
    file = tmp_path / "run-%p.trace"
    kept = tensor()
    gc.collect()  # What other tests have left would be freed in the middle.
    live = memory.memory_stats()["requested_bytes.all.current"]
    memory._record_memory_history(stream_file=file)
    for _ in range(10):
        tensor()
    described = stream()
    assert described["running"]
    written = tmp_path / f"run-{os.getpid()}.trace"
    assert described["file"] == str(written)
    assert described["socket"] is None
    memory._record_memory_history(enabled=None)
    assert not stream()["running"]
    assert stat.S_IMODE(written.stat().st_mode) == 0o600

    (device,) = info(flexmem, written)["devices"]
    assert (device["events"]["allocations"], device["events"]["frees"]) == (10, 10)
    assert device["peak"]["live_bytes"] == live + MIB
    assert device["history"]["lost_events"] == 0
    assert any("test_history_stream.py" in str(holder["site"]) for holder in device["peak"]["holders"])
    assert stream()["events"] >= 20
    assert (stream()["lost_events"], stream()["dropped_events"]) == (0, 0)
    del kept
    trace = tmp_path / "imported.trace"
    assert flexmem("import", str(written), "-o", str(trace)).returncode == 0
    assert info(flexmem, trace)["devices"][0]["peak"] == device["peak"]


def test_the_summary_shows_what_the_stream_has_lost(tmp_path: Path) -> None:
    memory._record_memory_history(max_entries=16, stream_file=tmp_path / "run.trace")
    while stream()["lost_events"] == 0:
        for _ in range(1000):
            tensor(256)
    lost = stream()["lost_events"]
    (row,) = (line for line in memory.memory_summary().splitlines() if "Stream of the history" in line)
    assert "running" in row
    assert int(row.split(" lost")[0].split()[-1]) >= lost > 0


def test_it_stops_and_starts_again(tmp_path: Path, flexmem: Flexmem) -> None:
    first, second = tmp_path / "first.trace", tmp_path / "second.trace"
    memory._record_memory_history(stream_file=first)
    tensor()
    memory._record_memory_history(stream_file=second)  # In place of the first.
    for _ in range(2):
        tensor()
    memory._record_memory_history(clear_history=True)  # The stream goes on.
    assert stream()["running"]
    memory._record_memory_history(enabled=None)
    counts = [info(flexmem, file)["devices"][0]["events"]["allocations"] for file in (first, second)]
    lost = info(flexmem, second)["devices"][0]["history"]["lost_events"]
    assert counts[0] == 1
    assert counts[1] == 2 or lost > 0  # What was forgotten before it was seen is said to be lost.


def test_bad_arguments_and_places_are_refused(tmp_path: Path, runtime: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    link = tmp_path / "link.trace"
    link.symlink_to(precious)
    with pytest.raises(OSError, match=r"link\.trace: it is a symbolic link"):
        memory._record_memory_history(stream_file=link)
    assert precious.read_text() == "precious"
    with pytest.raises(OSError, match=r"/no/such/run\.trace: No such file"):
        memory._record_memory_history(stream_file="/no/such/run.trace")
    with pytest.raises(OSError, match="/dev/full: No space left"):
        memory._record_memory_history(stream_file="/dev/full")
    runtime.mkdir(mode=0o755)
    runtime.chmod(0o755)
    with pytest.raises(OSError, match="others may enter it; expected a folder of this user with mode 0700"):
        memory._record_memory_history(stream_socket=True)
    for bad in ({"enabled": "state"}, {"enabled": None}, {"max_entries": 0}):
        with pytest.raises(ValueError, match="expected enabled='all' and max_entries above 0"):
            memory._record_memory_history(**{"stream_socket": True, **bad})
    for bad_file in (7, b"run.trace", False):
        with pytest.raises(TypeError, match="stream_file=.*: expected a path, such as "):
            memory._record_memory_history(stream_file=bad_file)
    with pytest.raises(ValueError, match="stream_file='': expected a path, such as "):
        memory._record_memory_history(stream_file="")


def test_umask_and_other_rights_are_not_counted_on(tmp_path: Path, runtime: Path) -> None:
    file = tmp_path / "run.trace"
    file.write_text("old")
    file.chmod(0o666)
    before = os.umask(0)
    try:
        memory._record_memory_history(stream_file=file, stream_socket=True)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (file, runtime, Path(stream()["socket"]))]
    assert modes == [0o600, 0o700, 0o600]
    memory._record_memory_history(enabled=None)
    assert list(runtime.iterdir()) == []


def test_a_run_is_streamed_by_the_environment_alone(child: RunChild, tmp_path: Path, flexmem: Flexmem) -> None:
    code = """
import gc, torch
gc.disable()
for _ in range(8):  # Each holds itself: only a collection frees it.
    holder = [torch.empty(10 << 20, dtype=torch.uint8, device="spyre")]
    holder.append(holder)
try:
    torch.empty(100 << 20, dtype=torch.uint8, device="spyre")
except torch.OutOfMemoryError:
    print(torch.spyre.memory.memory_stats()["allocated_bytes.all.peak"])
"""
    peak = int(child(code, f",stream_file:{tmp_path}/run-%p.trace").check())
    (file,) = tmp_path.glob("run-*.trace")
    (device,) = info(flexmem, file)["devices"]
    assert device["history"]["state"] == "whole"
    assert device["history"]["lost_events"] == 0
    assert device["peak"]["live_bytes"] == peak
    assert device["pressure"]["rescued"] >= 1
    assert device["pressure"]["reclaimed_bytes"] > 0
    assert [failure["requested_bytes"] for failure in device["out_of_memory"]] == [100 * MIB]


def test_several_devices_are_in_one_file(child: RunChild, tmp_path: Path, flexmem: Flexmem) -> None:
    code = """
import torch
for index in (0, 1, 1):
    torch.empty(1 << 20, dtype=torch.uint8, device=f"spyre:{index}")
"""
    child(code, f",devices:2,stream_file:{tmp_path}/run.trace").check()
    devices = info(flexmem, tmp_path / "run.trace")["devices"]
    counts = {device["device"]: device["events"]["allocations"] for device in devices}
    assert counts == {0: 1, 1: 2}


def test_a_stream_that_cannot_start_is_an_error_of_the_configuration(run_script: RunScript) -> None:
    script = """
    import torch
    try:
        torch.empty(1, device="spyre")
    except Exception as error:
        print(error)
    """
    conf = "device_memory:1MiB,history:100,stream_file:/no/such/run.trace"
    said = run_script(script, env={"TORCH_SPYRE_ALLOC_CONF": conf}).check()
    assert "TORCH_SPYRE_ALLOC_CONF: cannot open /no/such/run.trace: No such file" in said


def test_a_forked_child_streams_nothing_and_leaves_the_file_alone(
    child: RunChild, tmp_path: Path, flexmem: Flexmem
) -> None:
    code = """
import os, sys, torch
memory = torch.spyre.memory
torch.empty(1 << 20, dtype=torch.uint8, device="spyre")
forked = os.fork()
if forked == 0:
    import torch_spyre
    assert torch_spyre._C.history_stream() is None
    assert torch_spyre._C.stop_history_stream()
    sys.exit(7)  # With atexit, as a program ends.
assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 7
assert os.path.exists(memory._history_stream()["socket"])
torch.empty(1 << 20, dtype=torch.uint8, device="spyre")
"""
    child(code, f",stream_socket:true,stream_file:{tmp_path}/run.trace").check()
    (device,) = info(flexmem, tmp_path / "run.trace")["devices"]
    assert device["events"]["allocations"] == 2
    assert device["history"]["lost_events"] == 0


def test_a_file_that_fails_is_said_and_the_program_goes_on(child: RunChild, tmp_path: Path) -> None:
    code = """
import resource, torch
memory = torch.spyre.memory
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))  # As a disk that is full then.
while memory._history_stream()["file_error"] is None:
    for _ in range(100):
        torch.empty(256, dtype=torch.uint8, device="spyre")
before = memory._history_stream()["dropped_events"]
while memory._history_stream()["dropped_events"] == before:
    torch.empty(256, dtype=torch.uint8, device="spyre")
print([line for line in memory.memory_summary().splitlines() if "Its file failed" in line])
"""
    ran = child(code, f",stream_file:{tmp_path}/run.trace")
    assert "File too large" in ran.check()
    assert "run.trace is not whole: File too large" in ran.err


def test_a_warning_at_exit_that_is_an_error_keeps_nothing_from_being_closed(
    run_script: RunScript, tmp_path: Path
) -> None:
    script = """
    import atexit

    def last():  # Of what runs at exit, since it comes before the import.
        from torch_spyre import _C
        print("closed" if _C.testing.capture_stack(True) == 0 else "open")

    atexit.register(last)
    import resource, warnings, torch
    from torch_spyre import _C
    memory = torch.spyre.memory
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
    while memory._history_stream()["file_error"] is None:
        for _ in range(100):
            torch.empty(256, dtype=torch.uint8, device="spyre")
    assert _C.testing.capture_stack(True) != 0
    warnings.simplefilter("error")
    """
    conf = f"device_memory:64MiB,history:10000,stream_file:{tmp_path}/run.trace"
    ran = run_script(script, env={"TORCH_SPYRE_ALLOC_CONF": conf})
    assert ran.check() == "closed\n"
    assert "run.trace is not whole: File too large" in ran.err


def test_the_end_of_a_stream_without_fault_warns_of_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory._record_memory_history(stream_file=tmp_path / "run.trace")
        memory._record_memory_history(enabled=None)


def test_two_processes_do_not_write_into_one_file(child: RunChild, tmp_path: Path) -> None:
    file = tmp_path / "run.trace"
    memory._record_memory_history(stream_file=file)
    code = """
import torch
try:
    torch.spyre.memory._record_memory_history(stream_file={!r})
except OSError as error:
    print(error)
"""
    assert "another process streams to it; expected one file for each" in child(code.format(str(file))).check()


def test_allocations_and_collections_go_on_while_a_reader_is_stopped(runtime: Path) -> None:
    import socket

    memory._record_memory_history(stream_socket=True)
    with socket.socket(socket.AF_UNIX) as stalled:
        stalled.connect(stream()["socket"])
        wait_until(lambda: stream()["clients"] == 1)
        while stream()["dropped_events"] == 0:
            for _ in range(10_000):
                tensor(256)
        rescued = memory.pressure_stats()["rescued"]
        with left_to_pressure():
            dead_cycle(40 * MIB)
            tensor(40 * MIB)
        assert memory.pressure_stats()["rescued"] > rescued
        memory._record_memory_history(enabled=None)  # Which warns if it took too long, and warnings are errors here.
        assert not stream()["running"]


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


Watch = Callable[[int], Watcher]


def first(moment: dict[str, Any]) -> dict[str, Any]:
    device: dict[str, Any] = moment["devices"][0]
    return device


def test_the_watch_sees_a_process_live_under_pressure_and_out_of_memory(runtime: Path, watch: Watch) -> None:
    gc.collect()
    memory._record_memory_history(stream_socket=True)
    base = torch.spyre.memory_stats()["requested_bytes.all.current"]
    watcher = watch(os.getpid())
    watcher.moment(lambda moment: first(moment)["live_bytes"] == base)
    kept = tensor(20 * MIB)
    seen = watcher.moment(lambda moment: first(moment)["live_bytes"] == base + 20 * MIB)
    holder = first(seen)["holders"][0]
    assert holder["bytes"] == 20 * MIB
    assert "test_history_stream.py" in holder["site"]

    with left_to_pressure():
        dead_cycle(30 * MIB)
        kept_too = tensor(30 * MIB)
    seen = watcher.moment(lambda moment: first(moment)["pressure"]["rescued"] == 1)
    assert first(seen)["pressure"]["reclaimed_bytes"] >= 30 * MIB
    assert first(seen)["pressure_events"][0]["requested_bytes"] == 30 * MIB
    with pytest.raises(torch.OutOfMemoryError):
        tensor(40 * MIB)
    seen = watcher.moment(lambda moment: first(moment)["out_of_memory"] == 1)
    assert first(seen)["out_of_memory_events"][0]["requested_bytes"] == 40 * MIB
    del kept, kept_too
    watcher.moment(lambda moment: first(moment)["live_bytes"] == base)
    memory._record_memory_history(enabled=None)
    assert watcher.close() == 0


def test_two_watches_see_the_same(runtime: Path, watch: Watch) -> None:
    memory._record_memory_history(stream_socket=True)
    watchers = [watch(os.getpid()) for _ in range(2)]
    for watcher in watchers:
        watcher.moment(lambda moment: not moment["ended"])
    kept = tensor(7 * MIB)
    for watcher in watchers:
        watcher.moment(lambda moment: first(moment)["live_bytes"] >= 7 * MIB)
    del kept
    memory._record_memory_history(enabled=None)
    assert [watcher.close() for watcher in watchers] == [0, 0]


def test_a_process_that_is_killed_ends_its_watch(runtime: Path, watch: Watch) -> None:
    code = "import torch, time\ntorch.empty(1, device='spyre')\nprint(flush=True)\ntime.sleep(600)"
    conf = "device_memory:64MiB,history:100,stream_socket:true"
    environment = {**os.environ, "TORCH_SPYRE_ALLOC_CONF": conf}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        killed.stdout.readline()
        watcher = watch(killed.pid)
        watcher.moment(lambda moment: first(moment)["live_blocks"] == 0)
        killed.kill()
        watcher.moment(lambda moment: bool(moment["ended"]))
        assert watcher.close() == 0


def test_a_process_without_a_stream_says_how_to_switch_it_on(runtime: Path, flexmem: Flexmem) -> None:
    answer = flexmem("watch", str(os.getpid()))
    assert answer.returncode == 5
    assert "stream_socket:true" in answer.stderr
    assert "_record_memory_history(stream_socket=True)" in answer.stderr


def test_a_terminal_is_drawn_over_and_over(runtime: Path) -> None:
    memory._record_memory_history(stream_socket=True)
    kept = tensor(7 * MIB)
    ours, theirs = pty.openpty()
    command = [FLEXMEM, "watch", str(os.getpid()), "--interval", "0.05"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    watching = subprocess.Popen(command, stdin=theirs, stdout=theirs, env=environment)
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + PATIENCE_S
    try:
        # Two pictures: the second begins by going up to where the first began.
        while shown.count(f"process {os.getpid()}, running".encode()) < 2:
            assert time.monotonic() < deadline, shown
            if select.select([ours], [], [], 1)[0]:
                shown += os.read(ours, 1 << 16)
        memory._record_memory_history(enabled=None)
        with contextlib.suppress(OSError):  # Which says that the other end is closed.
            while True:
                shown += os.read(ours, 1 << 16)
        assert watching.wait(PATIENCE_S) == 0
    finally:
        watching.kill()
        watching.wait()
        os.close(ours)
    text = shown.decode()
    assert "up to 64.00 MiB" in text
    assert "\x1b[" in text
    assert "ended: torch-spyre-flex" in text
    assert "7.00 MiB" in text
    del kept
