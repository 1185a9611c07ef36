"""The command flexmem beside the package: it is there, and its figures of a snapshot are those of the device."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conftest import RunScript

FLEXMEM = Path(sysconfig.get_path("scripts")) / "flexmem"
SECONDS = 60

CAPACITY = 64 << 20
RECORDED = f"device_memory:{CAPACITY},history:100000"
"""A device of 64 MiB that records from the start."""

PROGRAM = """
    import gc, json, torch

    spyre = torch.spyre.memory

    def tensor(mib):
        return torch.empty(int(mib * (1 << 20)) + 5, dtype=torch.uint8, device="spyre")

    class Cycle:
        def __init__(self, mib):
            self.itself, self.tensor = self, tensor(mib)

    gc.disable()
    kept = [tensor(0.01 * number) for number in range(1, 100)]
    del kept[::3]
    for _ in range(12):
        Cycle(9)  # Five are garbage when the device is full.
    try:
        tensor(63)
        raise SystemExit("63 MiB beside what is kept")
    except torch.OutOfMemoryError:
        pass
    torch.spyre.synchronize()
    spyre._dump_snapshot(input())
    print(json.dumps({**spyre.memory_stats(), **spyre.pressure_stats()}))
"""


def flexmem(*arguments: str | Path) -> str:
    done = subprocess.run([FLEXMEM, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def answer(*arguments: str | Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(flexmem(*arguments, "--json"))
    return content


class Recorded(NamedTuple):
    snapshot: Path
    statistics: dict[str, int]
    """`memory_stats` and `pressure_stats`, when the snapshot had been taken."""


@pytest.fixture(scope="module")
def recorded(run_script: RunScript, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    snapshot = tmp_path_factory.mktemp("recorded") / "snapshot.pickle"
    shown = run_script(PROGRAM, env={"TORCH_SPYRE_ALLOC_CONF": RECORDED}, stdin=f"{snapshot}\n")
    return Recorded(snapshot, json.loads(shown.check()))


def test_the_command_is_installed_with_the_package() -> None:
    assert flexmem("--version").split() == ["flexmem", version("torch-spyre-flex")]
    # Nothing that a debugger wants: people download it.
    assert FLEXMEM.stat().st_size < 6 << 20


def test_the_command_answers_about_files_of_others(tmp_path: Path) -> None:
    log = tmp_path / "buffers.csv"
    log.write_text("id,lower,upper,size\na,0,3,100\nb,1,2,28\n")
    (device,) = answer("info", log)["devices"]
    assert device["peak"]["live_bytes"] == 128
    assert device["events"]["allocations"] == 2


def test_what_info_says_is_what_the_device_said(recorded: Recorded) -> None:
    (device,) = answer("info", recorded.snapshot)["devices"]
    statistics = recorded.statistics
    memory, events, pressure = device["memory"], device["events"], device["pressure"]
    assert device["capacity_bytes"] == memory["reserved_bytes"] == statistics["reserved_bytes.all.current"] == CAPACITY
    assert device["history"]["state"] == "whole"
    assert device["impossible"] == []
    for key in ("allocated_bytes", "requested_bytes", "active_bytes"):
        assert memory[key] == statistics[f"{key}.all.current"] > 0, key
    assert memory["segments"] == statistics["segment.all.current"]
    assert device["peak"]["live_bytes"] == statistics["requested_bytes.all.peak"]
    assert not device["peak"]["is_lower_bound"]
    assert events["allocations"] == statistics["allocation.all.allocated"]
    assert events["frees"] == statistics["allocation.all.freed"]
    assert events["out_of_memory"] == statistics["num_ooms"] == 1
    assert events["collections"] == statistics["collections.young"] + statistics["collections.full"] > 0
    assert pressure["events"] == statistics["events"] > 0
    assert pressure["rescued"] == statistics["rescued"] > 0
    assert pressure["reclaimed_bytes"] == statistics["reclaimed_bytes"] > 0
    (failure,) = device["out_of_memory"]
    assert failure["requested_bytes"] == (63 << 20) + 5


def test_a_trace_tells_what_the_snapshot_told(recorded: Recorded, tmp_path: Path) -> None:
    trace = tmp_path / "snapshot.trace"
    flexmem("import", recorded.snapshot, "-o", trace)
    assert trace.stat().st_size < recorded.snapshot.stat().st_size
    assert answer("info", trace) == answer("info", recorded.snapshot)


def test_a_replay_on_the_same_memory_goes_as_it_went(recorded: Recorded) -> None:
    statistics = recorded.statistics
    replayed = answer("replay", recorded.snapshot, "--device-memory", str(CAPACITY))["flex"]
    assert replayed["failure"] is None
    assert replayed["allocations"] == statistics["allocation.all.allocated"]
    assert replayed["live_peak_bytes"] == statistics["requested_bytes.all.peak"]
    assert replayed["occupied_peak_bytes"] == statistics["allocated_bytes.all.peak"]
    assert replayed["reserved_peak_bytes"] == statistics["reserved_bytes.all.peak"]


def test_a_plan_lies_between_the_peak_and_what_the_device_had(recorded: Recorded) -> None:
    planned = answer("plan", recorded.snapshot, "--regions", "1")
    assert planned["peak_bytes"] == recorded.statistics["requested_bytes.all.peak"]
    (layout,) = planned["layouts"]
    assert planned["peak_bytes"] <= layout["most_free_bytes"] <= CAPACITY
    less = planned["peak_bytes"] - 1
    refused: list[str | Path] = [FLEXMEM, "replay", recorded.snapshot, "--device-memory", str(less), "--json"]
    done = subprocess.run(refused, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["flex"]["failure"]["requested_bytes"] > 0
