"""PyTorch memory snapshots as traces: all generations of the format, what is lost and what is rebuilt, and errors."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import RunScript
from torch_spyre.memory_snapshots import SnapshotError, Timeline, lines, read, timelines
from torch_spyre.memory_snapshots.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests/data/snapshots"
TRACES = ROOT / "benches/data/snapshots"
BASE = 0x7F00_0000_0000

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: object, name: str = "snapshot.pickle") -> Path:
        path = tmp_path / name
        path.write_bytes(pickle.dumps(content))
        return path

    return write


def event(action: str, offset: int, size: int, **more: object) -> dict[str, Any]:
    frames = [{"name": "f", "filename": "a.py", "line": 1}]
    return {"action": action, "addr": BASE + offset, "size": size, "stream": 0, "frames": frames, **more}


def free(offset: int, size: int) -> list[dict[str, Any]]:
    return [event("free_requested", offset, size), event("free_completed", offset, size)]


def block(size: int, requested: int | None = None, state: str = "active_allocated", **more: object) -> dict[str, Any]:
    return {"size": size, "requested_size": size if requested is None else requested, "state": state, **more}


def segment(blocks: list[dict[str, Any]], offset: int = 0, device: int = 0) -> dict[str, Any]:
    total = sum(each["size"] for each in blocks)
    return {"device": device, "address": BASE + offset, "total_size": total, "blocks": blocks}


def operations(timeline: Timeline) -> list[str]:
    return [line for line in lines(timeline) if not line.startswith("#")]


def only(path: Path) -> Timeline:
    (timeline,) = timelines(read(path))
    return timeline


def test_a_whole_history_has_an_exact_peak(write: Write) -> None:
    events = [
        event("segment_alloc", 0, 4096),
        event("alloc", 0, 1000),
        event("alloc", 1024, 500),
        event("free_requested", 0, 1000),
        event("alloc", 2048, 100),
        event("free_completed", 0, 1000),
        event("snapshot", 0, 0) | {"addr": 0},
    ]
    blocks = [block(1024, state="inactive"), block(1024, 500), block(512, 100), block(1536, state="inactive")]
    timeline = only(write({"segments": [segment(blocks)], "device_traces": [events]}))
    assert timeline.is_whole
    assert timeline.peak_bytes() == 1600, "a block is in use until its free is completed"
    assert operations(timeline) == [
        "segment 4096 at 0",
        "allocate 0 1000 at 0",
        "allocate 1 500 at 1024",
        "allocate 2 100 at 2048",
        "free 0",
    ]


def test_blocks_from_before_recording_are_found_from_both_ends(write: Write) -> None:
    # Before recording: A at 0 (freed), B at 1024 (lives on), and C at 2048, whose place D takes.
    events = [*free(0, 1000), *free(2048, 300), event("alloc", 2048, 600)]
    blocks = [block(1024, state="inactive"), block(1024, 900), block(1024, 600), block(512, state="inactive")]
    timeline = only(write({"segments": [segment(blocks)], "device_traces": [events]}))
    assert operations(timeline) == [
        "baseline 0 1000 at 0",
        "baseline 1 900 at 1024",
        "baseline 2 300 at 2048",
        "free 0",
        "free 2",
        "allocate 3 600 at 2048",
    ]
    assert (timeline.baseline_bytes, timeline.baseline_freed, timeline.reserved_before_bytes) == (2200, 2, 3584)
    assert timeline.peak_bytes() == 2200
    assert not timeline.is_whole
    assert "# peak_is_lower_bound: yes" in list(lines(timeline))
    assert timeline.contradictions == 0


def test_memory_reserved_before_recording_makes_a_history_truncated(write: Write) -> None:
    # Everything was free when recording began, but the segment was there: it had been used.
    timeline = only(
        write({"segments": [segment([block(512, 500)])], "device_traces": [[event("alloc", 0, 500)]]}),
    )
    assert timeline.baseline == []
    assert not timeline.is_whole


def test_expandable_segments_given_back_memory_and_out_of_memory(write: Write) -> None:
    events = [
        event("segment_map", 0, 4096),
        event("segment_alloc", 8192, 2048),
        event("alloc", 0, 512),
        {"action": "oom", "size": 9000, "device_free": 77, "stream": 0},
        event("segment_unmap", 2048, 2048),
        event("segment_free", 8192, 2048),
    ]
    blocks = [block(512), block(1536, state="inactive")]
    timeline = only(write({"segments": [segment(blocks)], "device_traces": [events]}))
    assert timeline.is_whole
    assert operations(timeline) == [
        "map 4096 at 0",
        "segment 2048 at 8192",
        "allocate 0 512 at 0",
        "oom 9000 with 77 free",
        "unmap 2048 at 2048",
        "segment-free 2048 at 8192",
    ]


def test_devices_are_apart_and_idle_ones_are_left_out(write: Write) -> None:
    segments = [segment([block(512)], device=2), segment([block(1024)], offset=1 << 20, device=1)]
    traces = [[], [event("segment_alloc", 1 << 20, 1024), event("alloc", 1 << 20, 1024)], []]
    first, second = timelines(read(write({"segments": segments, "device_traces": traces})))
    assert (first.device, first.is_whole, first.peak_bytes()) == (1, True, 1024)
    assert (second.device, second.is_whole, second.peak_bytes()) == (2, False, 512)


def test_the_old_history_of_blocks(write: Write) -> None:
    history = [{"addr": BASE + 512, "real_size": 700, "frames": []}, {"addr": BASE + 512, "real_size": 9, "frames": []}]
    oldest = {"size": 1024, "state": "active_allocated", "history": history}
    blocks = [block(512, 400), oldest, {"size": 512, "state": "active_pending_free"}]
    timeline = only(write([segment(blocks)]))
    assert operations(timeline) == ["baseline 0 400 at 0", "baseline 1 700 at 512", "baseline 2 512 at 1536"]
    assert not timeline.is_whole


def test_contradictions_and_unknown_actions_are_counted_not_hidden(write: Write) -> None:
    events = [
        event("segment_alloc", 0, 512),
        event("alloc", 0, 100),
        event("alloc", 0, 200),
        *free(0, 200),
        *free(0, 200),
        event("alloc", 0, 300),
        event("user_defined", 0, 0),
    ]
    timeline = only(write({"segments": [segment([block(512, state="inactive")])], "device_traces": [events]}))
    assert operations(timeline) == [
        "segment 512 at 0",
        "allocate 0 100 at 0",
        "free 0",
        "allocate 1 200 at 0",
        "free 1",
        "allocate 2 300 at 0",
    ]
    assert timeline.contradictions == 3, "allocated while live, freed twice, and live at the end in the events alone"
    assert not timeline.is_whole
    assert timeline.unknown_actions == {"user_defined": 1}
    heading = [line for line in lines(timeline) if line.startswith("#")]
    assert "# contradictions: 3 events do not fit the others" in heading
    assert "# left out, since their meaning is not known: 'user_defined' 1 times" in heading


def test_more_taken_than_is_there_is_a_contradiction(write: Write) -> None:
    events = [event("segment_alloc", 0, 4096), event("alloc", 0, 512)]
    timeline = only(write({"segments": [segment([block(512)])], "device_traces": [events]}))
    assert (timeline.contradictions, timeline.reserved_before_bytes, timeline.is_whole) == (1, 0, False)


GOOD = {"segments": [segment([block(512)])], "device_traces": [[event("alloc", 0, 512)]]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (7, ": expected a dict, found int"),
        ({}, ": expected the key 'segments', which is missing"),
        ({"segments": {}}, ": segments: expected a list, found dict"),
        ({"segments": [3]}, r": segments\[0\]: expected a dict, found int"),
        ([{**segment([]), "device": "cuda"}], r": \[0\].device: expected an integer, found str"),
        ([{**segment([]), "device": True}], r": \[0\].device: expected an integer, found bool"),
        ([{**segment([]), "address": -1}], r": \[0\].address: expected an integer from 0 to 2\*\*64 - 1"),
        ([{**segment([]), "address": 1 << 64}], r": \[0\].address: expected an integer from 0 to 2\*\*64 - 1"),
        (
            [{**segment([]), "total_size": 5}],
            r": \[0\].total_size: expected the sum of the sizes of the blocks, 0, found 5",
        ),
        (
            [segment([block(8, state="odd")])],
            r"\[0\].blocks\[0\].state: expected one of inactive, active_a.*, found 'odd'",
        ),
        (
            [segment([block(8, address=3)])],
            r"\[0\].blocks\[0\].address: expected \d+, behind the block before it, found 3",
        ),
        ([segment([{"size": 8, "state": "inactive", "history": [{}]}])], r"history\[0\]: expected the key 'real_size'"),
        (GOOD | {"device_traces": 1}, ": device_traces: expected a list, found int"),
        (GOOD | {"device_traces": [[{}]]}, r": device_traces\[0\]\[0\]: expected the key 'action', which is missing"),
        (GOOD | {"device_traces": [[{"action": "alloc", "size": 1}]]}, r"\[0\]\[0\]: expected the key 'addr'"),
        (
            GOOD | {"device_traces": [[event("alloc", 0, 1) | {"size": 1.5}]]},
            r"\.size: expected an integer, found float",
        ),
        (GOOD | {"device_traces": [[{"action": 3}]]}, r"\.action: expected a string, found int"),
    ],
)
def test_a_malformed_file_says_where_and_what_was_expected(write: Write, content: object, message: str) -> None:
    with pytest.raises(SnapshotError, match=r"^odd\.pickle" + (message if message.startswith(":") else f".*{message}")):
        read(write(content, "odd.pickle"))


def test_a_small_file_cannot_mean_a_huge_snapshot(write: Write) -> None:
    blocks = [block(0)] * 2000
    with pytest.raises(SnapshotError, match="fewer items in all lists together than the file has bytes"):
        read(write([segment(blocks)] * 2000))


def sample(name: str) -> list[Timeline]:
    return list(timelines(read(SAMPLES / f"{name}.pickle")))


def test_the_real_samples_give_the_known_figures() -> None:
    (complete,) = sample("complete_trace")
    assert (complete.is_whole, complete.baseline, complete.peak_bytes()) == (True, [], 3_249_143_816)
    (timeless,) = sample("no_time_field")
    assert not timeless.is_whole
    assert (timeless.baseline_freed, len(timeless.baseline), timeless.count("allocate")) == (44, 838, 176)
    (old,) = sample("old_style_history")
    assert (len(old.baseline), old.baseline_bytes, old.operations) == (460, 11_840_159_744, [])
    assert [(each.device, each.peak_bytes(), each.is_whole) for each in sample("history_never_enabled")] == [
        (0, 8_551_088, False),
        (1, 8_519_680, False),
    ]
    for timeline in (complete, timeless, old):
        assert (timeline.contradictions, timeline.unknown_actions) == (0, {})


def test_the_sample_with_four_devices() -> None:
    first, second, third = sample("expandable_oom_four_devices")
    assert [each.device for each in (first, second, third)] == [0, 1, 2]
    assert [each.is_whole for each in (first, second, third)] == [False, True, True]
    assert [line for line in operations(second) if line.startswith("oom")] == ["oom 5308694528 with 95682560 free"]
    # Only the end of the first device's events is in the sample. What was live before them is rebuilt exactly.
    whole = (TRACES / "expandable_oom_four_devices.device-0.txt").read_text().splitlines()
    assert live_at_end(whole) == live_at_end(list(lines(first)))
    assert first.baseline_freed > 0


def live_at_end(trace: list[str]) -> list[list[str]]:
    """Sizes and addresses of the blocks that a trace leaves."""
    live: dict[str, list[str]] = {}
    for line in trace:
        match line.split():
            case ["allocate" | "baseline", number, *size_and_address]:
                live[number] = size_and_address
            case ["free", number]:
                del live[number]
    return sorted(live.values())


@pytest.mark.parametrize("name", ["complete_trace", "no_time_field"])
def test_the_committed_traces_are_what_the_importer_writes(name: str, tmp_path: Path) -> None:
    assert main([str(SAMPLES / f"{name}.pickle"), "-o", str(tmp_path)]) == 0
    written = tmp_path / f"{name}.device-0.txt"
    assert written.read_text() == (TRACES / written.name).read_text()


def test_the_command(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write({"segments": [segment([block(512)], device=1)], "device_traces": [[event("alloc", 0, 8)], []]})
    assert main([str(path), "--with-events", "-o", str(tmp_path / "out")]) == 0
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["snapshot.device-0.txt"]
    out = capsys.readouterr().out
    assert "snapshot.pickle, device 0" in out
    assert "device 1" not in out

    path.write_bytes(b"cos\nsystem\n.")
    assert main([str(path)]) == 1
    assert "error: snapshot.pickle: byte 0: refused to load the global os.system" in capsys.readouterr().err
    assert main([str(tmp_path / "missing.pickle")]) == 1
    assert "missing.pickle" in capsys.readouterr().err


def test_the_command_runs_as_a_module(run_script: RunScript) -> None:
    code = """
    import runpy, sys
    sys.argv = ["memory_snapshots", sys.stdin.readline().strip()]
    runpy.run_module("torch_spyre.memory_snapshots", run_name="__main__")
    """
    script = run_script(code, stdin=str(SAMPLES / "complete_trace.pickle"))
    assert "peak_bytes: 3249143816" in script.check()
