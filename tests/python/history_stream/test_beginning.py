"""How streams begin, change with what is recorded, and end; and that one that cannot begin changes nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import RunScript
from stream_tools import Flexmem, RunChild, info, memory, stream, tensor


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
    assert counts == [1, 2]
    assert stream()["lost_events"] == 0  # What was forgotten was written before.


def a_folder(path: Path) -> int:
    path.mkdir()
    return errno.EISDIR


def a_link(path: Path) -> int:
    path.with_suffix(".target").write_text("precious")
    path.symlink_to(path.with_suffix(".target"))
    return errno.ELOOP


def one_with_two_names(path: Path) -> int:
    path.write_text("precious")
    path.with_suffix(".other").hardlink_to(path)
    return errno.EPERM


def one_of_another(path: Path) -> int:
    path.write_text("precious")
    if os.geteuid() != 0:
        path.chmod(0o400)  # The nearest that there is for who cannot give files away.
        return errno.EACCES
    os.chown(path, 65534, 65534)
    return errno.EPERM


def one_in_no_folder(path: Path) -> int:
    path.parent.rmdir()
    return errno.ENOENT


def one_on_a_full_disk(path: Path) -> int:
    path.parent.rmdir()
    path.parent.symlink_to("/dev")  # Where `full` is as a disk without room.
    return errno.ENOSPC


BAD_FILES = [a_folder, a_link, one_with_two_names, one_of_another, one_in_no_folder, one_on_a_full_disk]


@pytest.mark.parametrize("make", BAD_FILES, ids=lambda make: make.__name__)
def test_a_file_that_cannot_be_streamed_to_changes_nothing(
    make: Callable[[Path], int], tmp_path: Path, flexmem: Flexmem
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "full"
    number = make(path)

    def refused(**settings: int) -> OSError:
        with pytest.raises(OSError, match=str(path)) as caught:
            memory._record_memory_history(stream_file=path, clear_history=True, **settings)
        return caught.value

    error = refused()
    assert (error.errno, error.filename) == (number, str(path))
    assert type(error) is type(OSError(number, ""))  # IsADirectoryError, FileNotFoundError, and so on.
    assert not memory._snapshot()["history"][0]["recording"]

    running = tmp_path / "running.trace"
    memory._record_memory_history(stream_file=running)
    tensor()
    refused(max_entries=1)
    tensor()
    assert stream()["running"]
    assert stream()["file"] == str(running)
    assert [event["action"] for event in memory._snapshot()["device_traces"][0]].count("alloc") == 2
    memory._record_memory_history(enabled=None)
    assert info(flexmem, running)["devices"][0]["events"]["allocations"] == 2
    targets = [other for other in tmp_path.rglob("full*") if other.is_file() and tmp_path in other.resolve().parents]
    assert all(target.read_text() == "precious" for target in targets)


def test_a_disk_without_room_for_what_is_live_changes_nothing(child: RunChild, tmp_path: Path) -> None:
    code = """
import resource, torch
memory = torch.spyre.memory
kept = [torch.empty(256, dtype=torch.uint8, device="spyre") for _ in range(2000)]

def refused():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # As a disk that is full then.
    try:
        memory._record_memory_history(stream_file={file!r})
    except OSError as error:
        print(error.strerror, error.filename)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)

memory._record_memory_history(enabled=None)
refused()
print(memory._snapshot()["history"][0]["recording"], memory._history_stream())
memory._record_memory_history(stream_socket=True)  # To which the limit does not apply.
refused()
print(memory._history_stream()["running"], memory._history_stream()["file"])
"""
    file = str(tmp_path / "refused.trace")
    refused = f"File too large {file}"
    assert child(code.replace("{file!r}", repr(file))).check().splitlines() == [
        refused,
        "False None",
        refused,
        "True None",
    ]


def test_an_unsafe_folder_for_sockets_changes_nothing(tmp_path: Path, runtime: Path) -> None:
    runtime.mkdir(mode=0o755)
    runtime.chmod(0o755)
    file = tmp_path / "run.trace"
    with pytest.raises(PermissionError, match="others may enter it; expected a folder of this user") as caught:
        memory._record_memory_history(stream_socket=True, stream_file=file)
    assert caught.value.filename == str(runtime)
    assert not file.exists()
    assert not memory._snapshot()["history"][0]["recording"]


def test_bad_arguments_are_refused() -> None:
    for bad in ({"enabled": "state"}, {"enabled": None}, {"max_entries": 0}):
        with pytest.raises(ValueError, match="expected enabled='all' and max_entries above 0"):
            memory._record_memory_history(**{"stream_socket": True, **bad})
    for bad_file in (7, b"run.trace", False):
        with pytest.raises(TypeError, match="stream_file=.*: expected a path, such as "):
            memory._record_memory_history(stream_file=bad_file)
    for bad_name in ("", "run\0.trace"):
        with pytest.raises(ValueError, match="stream_file=.*: expected a path, such as "):
            memory._record_memory_history(stream_file=bad_name)


def test_a_relative_file_is_one_from_the_folder_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flexmem: Flexmem
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    memory._record_memory_history(stream_file="run-%p.trace")
    monkeypatch.chdir("elsewhere")
    tensor()
    written = tmp_path / f"run-{os.getpid()}.trace"
    assert stream()["file"] == str(written)
    memory._record_memory_history(enabled=None)
    assert info(flexmem, written)["devices"][0]["events"]["allocations"] == 1
    assert list(Path().iterdir()) == []


def test_ending_or_changing_the_recording_of_one_device_loses_nothing(
    child: RunChild, tmp_path: Path, flexmem: Flexmem
) -> None:
    code = """
import torch
memory = torch.spyre.memory

def tensors(index):
    for _ in range(100):
        torch.empty(256, dtype=torch.uint8, device=f"spyre:{index}")

tensors(0)
memory._record_memory_history(enabled=None, device=0)
memory._record_memory_history(device=0)
tensors(1)
memory._record_memory_history(device=1, max_entries=256, clear_history=True)
tensors(1)
memory._record_memory_history(device=1, max_entries=128, clear_history=True)
"""
    child(code, f",devices:2,stream_file:{tmp_path}/run.trace").check()
    devices = info(flexmem, tmp_path / "run.trace")["devices"]
    found = {
        device["device"]: (device["events"]["allocations"], device["history"]["lost_events"]) for device in devices
    }
    assert found == {0: (100, 0), 1: (200, 0)}


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
