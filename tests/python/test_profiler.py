"""torch's profiler shows the device's memory: by operator, as events, in traces, and while memory runs out."""

from __future__ import annotations

import gc
import gzip
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, schedule

from pressure_tools import FREE_THREADED, MIB, Counters, make_garbage

ACTIVITIES = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


def profiled(work: Callable[[], object], activities: Iterable[ProfilerActivity] = ACTIVITIES, **options: Any) -> Any:
    with profile(activities=activities, profile_memory=True, acc_events=True, **options) as profiler:
        work()
    return profiler


def memory_events(profiler: profile, name: str = "[memory]", type_: Any = DeviceType.PrivateUse1) -> list[Any]:
    """The events of that name about devices of a type."""
    results = profiler.profiler.kineto_results.events()
    return [event for event in results if event.name() == name and event.device_type() == type_]


def reports(profiler: profile) -> list[Any]:
    """What the allocator reported of the device while operators ran, with addresses and totals."""

    def walk(events: Iterable[Any]) -> Iterator[Any]:
        for event in events:
            yield event
            yield from walk(event.children)

    tree = walk(profiler.profiler.kineto_results.experimental_event_tree())
    fields = [event.extra_fields for event in tree if event.tag == _EventType.Allocation]
    return [each for each in fields if each.device.type == "spyre"]


def network(device: str) -> Callable[[], object]:
    """A step whose tensors are large and of sizes that no allocator has to round up."""
    weight = torch.ones(512, 512, device=device, requires_grad=True)

    def step() -> object:
        hidden = (torch.ones(512, 512, device=device) @ weight).relu()
        hidden.backward(torch.ones_like(hidden))
        return hidden

    return step


class TestByOperator:
    def test_matches_what_the_cpu_takes(self) -> None:
        """A forward and a backward allocate and free the same large tensors in the same order."""
        seen = {}
        for device, type_ in (("cpu", DeviceType.CPU), ("spyre", DeviceType.PrivateUse1)):
            step = network(device)
            step()
            sizes = [event.nbytes() for event in memory_events(profiled(step), type_=type_)]
            seen[device] = [size for size in sizes if abs(size) >= MIB]
        assert seen["spyre"] == seen["cpu"]
        assert seen["cpu"].count(MIB) >= 5

    def test_is_counted_once(self) -> None:
        kept: list[torch.Tensor] = []
        profiler = profiled(lambda: kept.append(torch.ones(MIB, device="spyre").add(1)))
        by_operator = {each.key: each for each in profiler.key_averages()}
        assert sum(each.self_device_memory_usage for each in by_operator.values()) == 4 * MIB
        assert by_operator["aten::ones"].device_memory_usage == 4 * MIB
        assert by_operator["aten::add"].device_memory_usage == 4 * MIB
        assert by_operator["aten::empty"].self_device_memory_usage == 8 * MIB
        assert by_operator["[memory]"].self_device_memory_usage == -4 * MIB

    def test_table_has_columns_for_the_device(self) -> None:
        averages = profiled(lambda: torch.ones(MIB, device="spyre")).key_averages()
        heading, *rows = averages.table(sort_by="self_device_memory_usage").lower().splitlines()[1:]
        assert "spyre mem" in heading
        assert "self spyre mem" in heading
        assert any("aten::empty" in row and "4.00 mb" in row for row in rows)

    def test_default_activities_include_the_device(self) -> None:
        with profile(profile_memory=True, acc_events=True) as profiler:
            torch.ones(MIB, device="spyre")
        assert ProfilerActivity.PrivateUse1 in profiler.activities
        assert sum(event.nbytes() for event in memory_events(profiler) if event.nbytes() > 0) == 4 * MIB

    @pytest.mark.filterwarnings("ignore:Warning. Profiler clears events at the end of each cycle")
    @pytest.mark.parametrize("activities", [[ProfilerActivity.CPU], ACTIVITIES])
    def test_steps_of_a_schedule(self, activities: list[ProfilerActivity]) -> None:
        sums = []

        def ready(profiler: profile) -> None:
            sums.append(sum(event.nbytes() for event in memory_events(profiler) if event.nbytes() > 0))

        with profile(
            activities=activities,
            schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
            on_trace_ready=ready,
            profile_memory=True,
        ) as profiler:
            for _ in range(5):
                torch.ones(MIB, device="spyre")
                profiler.step()
        assert sums == [8 * MIB]


class TestEvents:
    def test_addresses_and_totals(self) -> None:
        before, addresses = torch.spyre.memory_allocated(), []

        def work() -> None:
            first = torch.empty(MIB, dtype=torch.uint8, device="spyre")
            second = torch.empty(2 * MIB, dtype=torch.uint8, device="spyre")
            addresses.extend([first.data_ptr(), second.data_ptr()])
            del first

        profiler = profiled(work)
        events, seen = memory_events(profiler), reports(profiler)
        assert [event.nbytes() for event in events] == [MIB, 2 * MIB, -MIB, -2 * MIB]
        assert {event.device_index() for event in events} == {0}
        assert [each.alloc_size for each in seen] == [MIB, 2 * MIB]
        assert [each.ptr for each in seen] == addresses
        assert [each.total_allocated - before for each in seen] == [MIB, 3 * MIB]
        assert {each.total_reserved for each in seen} == {torch.spyre.memory_reserved()}
        assert {str(each.device) for each in seen} == {"spyre:0"}

    def test_nothing_is_reported_without_memory(self) -> None:
        with profile(activities=ACTIVITIES, acc_events=True) as profiler:
            torch.ones(MIB, device="spyre")
        assert memory_events(profiler) == []

    def test_out_of_memory(self) -> None:
        def work() -> None:
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(1 << 30, device="spyre")

        (event,) = memory_events(profiled(work), "[OutOfMemory]")
        assert event.device_index() == 0

    def test_threads_of_autograd(self) -> None:
        """A backward allocates on a thread of the device, which is profiled with the thread that asked for it."""
        leaf = torch.ones(MIB, device="spyre", requires_grad=True)
        product = leaf * 2
        taken = [each.alloc_size for each in reports(profiled(lambda: product.backward(torch.ones_like(product))))]
        assert taken.count(4 * MIB) >= 2
        assert leaf.grad is not None

    @pytest.mark.parametrize("suffix", ["json", "json.gz"])
    def test_chrome_trace(self, tmp_path: Path, suffix: str) -> None:
        kept: list[torch.Tensor] = []
        profiler = profiled(lambda: kept.append(torch.ones(MIB, device="spyre")), record_shapes=True)
        file = tmp_path / f"trace.{suffix}"
        profiler.export_chrome_trace(str(file))
        text = gzip.decompress(file.read_bytes()) if suffix.endswith("gz") else file.read_bytes()
        events = json.loads(text)["traceEvents"]
        (reported,) = [event["args"] for event in events if event.get("args", {}).get("Bytes") == 4 * MIB]
        assert reported["Device Type"] == int(DeviceType.PrivateUse1)
        assert (reported["Device Id"], reported["Addr"]) == (0, kept[0].data_ptr())
        assert reported["Total Allocated"] == torch.spyre.memory_allocated()
        assert reported["Total Reserved"] == torch.spyre.memory_reserved()

    @pytest.mark.skipif(FREE_THREADED, reason="stacks end torch 2.12's profiler there, with CPU tensors too")
    @pytest.mark.filterwarnings("ignore:.*export_memory_timeline.*:FutureWarning")
    def test_memory_timeline(self, tmp_path: Path) -> None:
        step = network("spyre")
        profiler = profiled(step, record_shapes=True, with_stack=True)
        profiler.export_memory_timeline(str(tmp_path / "timeline.json"), device="spyre:0")
        times, sizes = json.loads((tmp_path / "timeline.json").read_text())
        assert len(times) == len(sizes) > 4
        assert max(sum(row) for row in sizes) >= 3 * MIB


class TestOlderProfiler:
    def test_times_and_memory(self) -> None:
        with torch.autograd.profiler.profile(use_device="spyre", profile_memory=True, use_kineto=False) as profiler:
            torch.ones(300, 300, device="spyre").mm(torch.ones(300, 300, device="spyre"))
        by_operator = {each.key: each for each in profiler.key_averages()}
        assert by_operator["aten::mm"].device_time > 0
        assert by_operator["aten::empty"].self_device_memory_usage > 2 * 360_000


class TestPressure:
    """Frees in collections are reported too: by the thread that asked for memory, or by a collector thread for it."""

    @pytest.fixture(autouse=True, params=["alone", "beside another thread"])
    def collector_off(self, request: pytest.FixtureRequest) -> Iterator[None]:
        done = threading.Event()
        other = threading.Thread(target=done.wait)
        if request.param != "alone":
            other.start()  # It might hold the interpreter, so a collector thread collects.
        gc.collect()
        gc.disable()
        yield
        gc.enable()
        gc.collect()
        done.set()
        if request.param != "alone":
            other.join()

    def test_reports_add_up(self) -> None:
        """What was allocated less what was freed is what is left."""
        counters, before = Counters(), torch.spyre.memory_allocated()

        def work() -> None:
            for _ in range(200):
                make_garbage()

        profiler = profiled(work)
        counters.check_all_rescued()
        sizes = [event.nbytes() for event in memory_events(profiler)]
        assert sizes.count(MIB) == 200
        assert sizes.count(-MIB) >= 136
        assert sum(sizes) == torch.spyre.memory_allocated() - before
        by_operator = {each.key: each.self_device_memory_usage for each in profiler.key_averages()}
        assert by_operator["aten::empty"] == sum(sizes)

    def test_failure_is_reported_after_what_was_tried(self) -> None:
        kept = [torch.empty(MIB, dtype=torch.uint8, device="spyre") for _ in range(50)]
        make_garbage(8 * MIB)

        def work() -> None:
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(30 * MIB, dtype=torch.uint8, device="spyre")

        profiler = profiled(work)
        assert len(memory_events(profiler, "[OutOfMemory]")) == 1
        assert [event.nbytes() for event in memory_events(profiler)] == [-8 * MIB]
        assert len(kept) == 50
