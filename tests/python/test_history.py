"""History: what is recorded of device memory, in the form of PyTorch's own snapshots.

PyTorch's viewers open a snapshot unchanged, its figures are those of `memory_stats`, and its trace leads to its blocks.
"""

from __future__ import annotations

import gc
import inspect
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz

from conftest import RunScript

memory = torch.spyre.memory

SIZE = 300_000  # Bytes of the tensors here: too large to be parked.


@pytest.fixture
def recording() -> Iterator[None]:
    gc.collect()
    memory._record_memory_history()
    yield
    memory._record_memory_history(enabled=None)


def tensor(size: int = SIZE) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="spyre")


def trace() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = memory._snapshot()["device_traces"][0]
    return entries


def actions() -> Counter[str]:
    return Counter(entry["action"] for entry in trace())


def live_of(snapshot: dict[str, Any], state: str = "active_allocated") -> dict[int, int]:
    """Requested bytes by address of the blocks in a state."""
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    return {block["address"]: block["requested_size"] for block in blocks if block["state"] == state}


@pytest.mark.usefixtures("recording")
def test_a_tensor_is_three_entries() -> None:
    kept = tensor()
    address = kept.data_ptr()
    del kept
    entries = [entry for entry in trace() if entry.get("addr") == address]
    assert [entry["action"] for entry in entries] == ["alloc", "free_requested", "free_completed"]
    assert all((entry["size"], entry["stream"]) == (SIZE, 0) for entry in entries)
    times = [entry["time_us"] for entry in trace()]
    assert times == sorted(times)
    assert abs(times[-1] / 1e6 - time.time()) < 600
    assert {entry["thread_id"] for entry in entries} == {threading.get_native_id()}


@pytest.mark.usefixtures("recording")
def test_the_trace_leads_to_the_blocks_and_the_figures_are_those_of_the_statistics() -> None:
    memory._record_memory_history(clear_history=True)
    before = live_of(memory._snapshot())
    kept = [tensor(SIZE + 1000 * number) for number in range(20)]
    del kept[::2]
    snapshot = memory._snapshot()
    live = dict(before)
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "alloc":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed":
            assert live.pop(entry["addr"]) == entry["size"]
    assert live == live_of(snapshot)
    stats = memory.memory_stats()
    segments = snapshot["segments"]
    assert sum(live.values()) == stats["requested_bytes.all.current"]
    assert sum(segment["requested_size"] for segment in segments) == stats["requested_bytes.all.current"]
    assert sum(segment["allocated_size"] for segment in segments) == stats["allocated_bytes.all.current"]
    assert sum(segment["active_size"] for segment in segments) == stats["active_bytes.all.current"]
    tensors = [segment for segment in segments if segment["memory_type"] == "tensor"]
    assert sum(segment["total_size"] for segment in tensors) == stats["reserved_bytes.all.current"]
    for segment in segments:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    assert len(live) == stats["allocation.all.current"]
    assert live_of(snapshot, "active_pending_free") == {}


@pytest.mark.usefixtures("recording")
def test_the_trace_undone_from_the_end_leads_to_the_beginning() -> None:
    """As the viewer walks it: a free is undone by a block that is there, an allocation by one that goes."""
    memory._record_memory_history(clear_history=True)
    before = live_of(memory._snapshot())
    kept = [tensor() for _ in range(5)]
    del kept[1:3]
    snapshot = memory._snapshot()
    live, requested = live_of(snapshot), set(live_of(snapshot, "active_pending_free"))
    for entry in reversed(snapshot["device_traces"][0]):
        if entry["action"] == "free_completed":
            assert entry["addr"] not in live
            requested.add(entry["addr"])
        elif entry["action"] == "free_requested":
            requested.remove(entry["addr"])
            live[entry["addr"]] = entry["size"]
        elif entry["action"] == "alloc":
            assert live.pop(entry["addr"]) == entry["size"]
    assert (live, requested) == (before, set())


def exhaust() -> int:
    """Runs out of memory once; the size that was asked for."""
    kept, size = tensor(), memory.mem_get_info()[1]
    with pytest.raises(torch.OutOfMemoryError):
        tensor(size)
    del kept
    return int(size)


@pytest.mark.usefixtures("recording")
def test_the_viewers_open_a_snapshot() -> None:
    tensor()  # So that there is a segment, also when this test runs alone.
    before = memory._snapshot()
    kept = tensor()
    exhaust()
    snapshot = memory._snapshot()
    shown = _memory_viz.trace(snapshot)
    assert "raise OutOfMemoryError" in shown
    assert "pressure_begin" in shown
    assert f"total_allocated: {_memory_viz.Bytes(memory.memory_stats()['requested_bytes.all.current'])}" in (
        _memory_viz.segsum(snapshot)
    )
    for show in (_memory_viz.segments, _memory_viz.memory):
        lines = show(snapshot, format_flamegraph=str).splitlines()
        sizes = [int(line.rsplit(" ", 1)[1]) for line in lines]
        assert sum(sizes) == sum(segment["total_size"] for segment in snapshot["segments"])
        assert any(";active_allocated;" in line and line.endswith(f" {SIZE}") for line in lines)
    assert _memory_viz.compare(before["segments"], snapshot["segments"], format_flamegraph=str) == ""
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "snapshot.pickle" in plot(snapshot)
    filtered = _memory_viz.filter_alloc_free_pairs(snapshot)["device_traces"][0]
    assert [entry["addr"] for entry in filtered if entry["action"] == "alloc"] == [kept.data_ptr()]


@pytest.mark.usefixtures("recording")
def test_the_viewers_command_line_opens_a_dumped_file(tmp_path: Path) -> None:
    kept = tensor()
    file = tmp_path / "snapshot.pickle"
    memory._dump_snapshot(file)
    command = [sys.executable, "-m", "torch.cuda._memory_viz", "trace", str(file)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "entries" in shown.stdout, shown.stdout
    assert pickle.loads(file.read_bytes())["device_traces"][0]
    del kept


@pytest.mark.usefixtures("recording")
def test_pressure_and_what_was_done_about_it_are_entries() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself, self.tensor = self, tensor(memory.mem_get_info()[1] // 3)

    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            Cycle()
    finally:
        gc.enable()
    entries = [entry for entry in trace() if entry["action"] in ("pressure_begin", "gc_collect", "pressure_end")]
    end = [entry["action"] for entry in entries].index("pressure_end")
    first, *collections, last = entries[: end + 1]
    assert first["action"] == "pressure_begin"
    assert first["device_free"] < first["size"]
    assert {entry["action"] for entry in collections} == {"gc_collect"}
    assert last["outcome"] == "rescued"
    assert last["reclaimed_bytes"] == sum(entry["size"] for entry in collections) > 0
    assert last["young_collections"] + last["full_collections"] == len(collections)
    assert last["skipped"] is None
    assert not last["timed_out"]
    gc.collect()


@pytest.mark.usefixtures("recording")
def test_out_of_memory_is_an_entry_with_what_was_free() -> None:
    size = exhaust()
    (entry,) = [entry for entry in trace() if entry["action"] == "oom"]
    assert entry["size"] == size
    assert 0 < entry["largest_free"] <= entry["device_free"] <= memory.mem_get_info()[1]
    assert "addr" not in entry


def test_recording_can_be_bounded_cleared_and_ended() -> None:
    memory._record_memory_history(max_entries=4)
    try:
        for _ in range(10):
            tensor()
        snapshot = memory._snapshot()
        assert len(snapshot["device_traces"][0]) <= 8, "a free that is done at once is one event and two entries"
        assert snapshot["history"][0]["recording"]
        assert snapshot["history"][0]["lost_events"] > 10
        memory._record_memory_history(max_entries=4, clear_history=True)
        snapshot = memory._snapshot()
        assert (snapshot["device_traces"], snapshot["history"][0]["lost_events"]) == ([[]], 0)
    finally:
        memory._record_memory_history(enabled=None)
    tensor()
    snapshot = memory._snapshot()
    assert snapshot["device_traces"] == [[]]
    assert snapshot["history"] == [{"recording": False, "lost_events": 0}]
    assert snapshot["segments"]


def test_state_keeps_no_events() -> None:
    memory._record_memory_history(enabled="state")
    try:
        kept = tensor()
        snapshot = memory._snapshot()
        assert snapshot["device_traces"] == [[]]
        (block,) = [
            block
            for segment in snapshot["segments"]
            for block in segment["blocks"]
            if block["address"] == kept.data_ptr()
        ]
        assert block["time_us"] > 0
    finally:
        memory._record_memory_history(enabled=None)


def test_actions_can_be_skipped() -> None:
    memory._record_memory_history(skip_actions=["free_requested", "snapshot"])
    try:
        tensor()
        memory._snapshot()
        counted = actions()
        assert (counted["free_requested"], counted["snapshot"]) == (0, 0)
        assert counted["alloc"] == counted["free_completed"] == 1
    finally:
        memory._record_memory_history(enabled=None)


def test_snapshots_are_events_and_looks_are_not() -> None:
    """As in CUDA: a failed request and the reports copy the blocks too, and leave no such event."""
    memory._record_memory_history()
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 40, device="spyre")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(memory.mem_get_info()[0] + 128, dtype=torch.uint8, device="spyre")
        memory.held_report()
        assert actions()["snapshot"] == 0
        memory.memory_snapshot()
        counted = actions()
        assert counted["snapshot"] == 2, "that and the one before"
        assert counted["oom"] == 2
    finally:
        memory._record_memory_history(enabled=None)


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # PyTorch 2.12 says so each time.
def test_plot_of_a_profile() -> None:
    """PyTorch's plot of what its profiler saw has the memory of this device, with the lines that took it."""

    def step() -> torch.Tensor:
        kept = torch.ones(3 << 18, device="spyre")
        kept.add_(1)
        return kept

    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(
        activities=activities, profile_memory=True, record_shapes=True, with_stack=True
    ) as profile:
        kept = step()
    shown = _memory_viz._profile_to_snapshot(profile)
    blocks = [block for segment in shown["segments"] for block in segment["blocks"]]
    (ours,) = [block for block in blocks if block.get("requested_size") == kept.nbytes]
    assert any(frame["name"].endswith(": step") for frame in ours["frames"])
    assert "snapshot.pickle" in _memory_viz.profile_plot(profile)


def test_the_signature_is_that_of_cuda() -> None:
    ours = inspect.signature(memory._record_memory_history).parameters
    theirs = inspect.signature(torch.cuda.memory._record_memory_history).parameters
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default, name
    assert list(ours)[: len(theirs)] == list(theirs)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"enabled": "some"}, "enabled='some': expected 'state', 'all' or None"),
        ({"context": "some"}, "context='some'"),
        ({"stacks": "cpp"}, "stacks='cpp': expected 'python' or 'all'"),
        ({"max_entries": -1}, "max_entries=-1"),
        ({"skip_actions": ["map"]}, 'unknown action "map"; expected one of alloc, free_requested'),
        ({"compile_context": True}, "compile_context=True: spyre does not record that"),
        ({"record_cuda": False}, "record_cuda=False"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        memory._record_memory_history(**arguments)
    with pytest.raises(TypeError, match="max_entries='10' is not an int"):
        memory._record_memory_history(max_entries="10")
    assert not memory._snapshot()["history"][0]["recording"]


def test_the_older_form_takes_a_bool() -> None:
    memory._record_memory_history(True, trace_alloc_max_entries=100, trace_alloc_record_context=True)
    try:
        tensor()
        assert actions()["alloc"] == 1
    finally:
        memory._record_memory_history(False)
    assert memory._snapshot()["device_traces"] == [[]]


def test_each_device_has_a_history_and_the_environment_can_begin_it(run_script: RunScript) -> None:
    run_script(
        """
        import torch
        memory = torch.spyre.memory
        assert [one["recording"] for one in memory._snapshot()["history"]] == [True, True]
        kept = torch.ones(1000, device="spyre:1")
        first, second = memory._snapshot()["device_traces"]
        assert "alloc" not in [entry["action"] for entry in first]
        assert "alloc" in [entry["action"] for entry in second]
        only = memory._snapshot(device=0)
        assert only["device_traces"][1] == [] and {one["device"] for one in only["segments"]} <= {0}
        memory._record_memory_history(enabled=None, device=1)
        assert [one["recording"] for one in memory._snapshot()["history"]] == [True, False]
        settings = memory._snapshot()["allocator_settings"]
        assert settings["spyre"]["history"] == 50 and "history:50" in settings["TORCH_SPYRE_ALLOC_CONF"]
        """,
        env={"TORCH_SPYRE_ALLOC_CONF": "device_memory:64MiB,devices:2,history:50"},
    ).check()


def test_a_forked_child_leaves_the_history_alone(run_script: RunScript) -> None:
    run_script(
        """
        import os, torch
        memory = torch.spyre.memory
        memory._record_memory_history()
        kept = torch.ones(1000, device="spyre")
        child = os.fork()
        if child == 0:
            del kept
            for use in (memory._snapshot, memory._record_memory_history):
                try:
                    use()
                except RuntimeError as error:
                    assert "spawn" in str(error)
                else:
                    os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert "alloc" in [entry["action"] for entry in memory._snapshot()["device_traces"][0]]
        """
    ).check()


@pytest.mark.usefixtures("recording")
def test_threads_that_allocate_while_snapshots_are_taken_lose_nothing() -> None:
    memory._record_memory_history(clear_history=True)

    def allocate() -> None:
        for number in range(300):
            tensor(1000 + number)

    threads = [threading.Thread(target=allocate) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert memory._snapshot()["history"][0]["lost_events"] < 10, "one that is being written is missing for a moment"
    for thread in threads:
        thread.join()
    counted = actions()
    assert memory._snapshot()["history"][0]["lost_events"] == 0
    assert counted["alloc"] == counted["free_requested"] == counted["free_completed"] == 900


def here() -> torch.Tensor:
    return tensor()


def functions(frames: list[dict[str, Any]]) -> list[str]:
    assert all(frame["filename"] and frame["line"] > 0 for frame in frames)
    return [frame["name"] for frame in frames]


@pytest.mark.usefixtures("recording")
def test_entries_and_live_blocks_have_the_stacks_they_come_from() -> None:
    kept = here()
    gone = here()
    address = gone.data_ptr()
    del gone
    snapshot = memory._snapshot()
    name = "test_entries_and_live_blocks_have_the_stacks_they_come_from"
    (alloc,) = [
        one for one in snapshot["device_traces"][0] if (one["action"], one.get("addr")) == ("alloc", kept.data_ptr())
    ]
    assert functions(alloc["frames"])[:3] == ["tensor", "here", name]
    assert alloc["frames"][1]["filename"] == __file__
    (block,) = [
        block for segment in snapshot["segments"] for block in segment["blocks"] if block["address"] == kept.data_ptr()
    ]
    assert block["frames"] == alloc["frames"]
    (free,) = [
        one for one in snapshot["device_traces"][0] if (one["action"], one.get("addr")) == ("free_requested", address)
    ]
    assert functions(free["frames"])[0] == name, "where the last reference went"


@pytest.mark.parametrize(
    ("context", "in_blocks", "in_allocs", "in_frees"),
    [
        (None, False, False, False),
        ("state", True, False, False),
        ("alloc", True, True, False),
        ("all", True, True, True),
    ],
)
def test_the_context_says_what_has_a_stack(
    context: str | None, in_blocks: bool, in_allocs: bool, in_frees: bool
) -> None:
    memory._record_memory_history(context=context)
    try:
        kept = here()
        here()
        snapshot = memory._snapshot()
        blocks = [
            bool(block["frames"])
            for segment in snapshot["segments"]
            for block in segment["blocks"]
            if block["address"] == kept.data_ptr()
        ]
        entries = snapshot["device_traces"][0]
        assert blocks == [in_blocks]
        assert {bool(one["frames"]) for one in entries if one["action"] == "alloc"} == {in_allocs}
        assert {bool(one["frames"]) for one in entries if one["action"] == "free_requested"} == {in_frees}
    finally:
        memory._record_memory_history(enabled=None)


def test_out_of_memory_has_the_stack_of_the_request() -> None:
    memory._record_memory_history()
    try:
        exhaust()
        (entry,) = [entry for entry in trace() if entry["action"] == "oom"]
        assert "exhaust" in functions(entry["frames"])
    finally:
        memory._record_memory_history(enabled=None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"skip_actions": "oom"}, "skip_actions='oom': expected a list of actions, or None"),
        ({"skip_actions": 5}, "skip_actions=5: expected a list of actions, or None"),
        ({"skip_actions": ["oom", 1]}, "expected names of actions, and 1 is not a str"),
        ({"clear_history": "x"}, "clear_history='x' is not a bool"),
        ({"device": True}, "Expected a device, its name, its index or None, but got: True"),
    ],
)
def test_arguments_of_another_type_are_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        memory._record_memory_history(**arguments)
    assert not memory._snapshot()["history"][0]["recording"]
