"""What is in the file of a stream, whose it is, and what is said when it fails."""

from __future__ import annotations

import gc
import os
import stat
import warnings
from pathlib import Path

import pytest

from stream_tools import MIB, Flexmem, RunChild, info, memory, stream, tensor, wait_until


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
    assert any("stream_tools.py" in str(holder["site"]) for holder in device["peak"]["holders"])
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


def test_a_file_can_be_read_while_it_grows(tmp_path: Path, flexmem: Flexmem) -> None:
    file = tmp_path / "run.trace"
    memory._record_memory_history(stream_file=file)
    tensor()
    memory._record_memory_history()  # Which has written what was recorded until then.
    growing = info(flexmem, file)
    memory._record_memory_history(enabled=None)
    ended = info(flexmem, file)
    for answers, is_growing in ((growing, True), (ended, False)):
        (device,) = answers["devices"]
        assert (answers["growing"], device["events"]["allocations"]) == (is_growing, 1)
        assert not device["history"]["lost_unknown"]


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


def test_a_file_that_failed_is_warned_of_once_and_does_not_keep_recording_on(tmp_path: Path) -> None:
    def fail(file: Path) -> None:
        memory._record_memory_history(stream_file=file)
        file.unlink()
        wait_until(lambda: stream()["file_error"] is not None)

    fail(tmp_path / "ended.trace")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="ended.trace is not whole: the file was removed"):
            memory._record_memory_history(enabled=None)
        assert not any(device["recording"] for device in memory._snapshot()["history"])
        memory._record_memory_history(enabled=None)
    fail(tmp_path / "replaced.trace")
    with pytest.warns(UserWarning, match="replaced.trace is not whole: the file was removed"):
        memory._record_memory_history(stream_file=tmp_path / "next.trace")


def test_the_end_of_a_stream_without_fault_warns_of_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory._record_memory_history(stream_file=tmp_path / "run.trace")
        memory._record_memory_history(enabled=None)
