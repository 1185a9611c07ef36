"""`flexmem watch` on this process and others, and a reader that does not read."""

from __future__ import annotations

import contextlib
import gc
import os
import pty
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from stream_tools import (
    FLEXMEM,
    MIB,
    PATIENCE_S,
    Flexmem,
    Watch,
    dead_cycle,
    first,
    left_to_pressure,
    memory,
    stream,
    tensor,
    wait_until,
)


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
    assert "stream_tools.py" in holder["site"]

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


def test_allocations_and_collections_go_on_while_a_reader_is_stopped(runtime: Path) -> None:
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
