"""torch's profiler with memory and stacks, while threads allocate under pressure. It is told of every allocation and
free outside of the mutex, and may take the GIL.

In a process of its own: torch 2.12's profiler fails on free-threaded CPython, with CPU tensors too. Where the profiled
program fails, the same one on CPU tensors must fail as well.
"""

from __future__ import annotations

import pytest

from conftest import RunScript

pytestmark = [pytest.mark.pressure, pytest.mark.scenario(14)]

PROGRAM = """
from torch._C._profiler import _EventType, _ExperimentalConfig
from torch.autograd import profiler_legacy
from torch.profiler import ProfilerActivity, profile

device = {device!r}

def make():
    node = Node()
    node.tensor = torch.empty(MIB, dtype=torch.uint8, device=device)

def work():
    # Three threads and this one, which is the one that is profiled unless all are, then a worker of autograd's.
    with Background(make), Background(make), Background(make):
        repeat(60, make)
    (torch.ones(1000, device=device, requires_grad=True) * 2).sum().backward()

def walk(events):
    for event in events:
        yield event
        yield from walk(event.children)

def events_of(**options):
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, profile_memory=True, **options) as profiler:
        work()
    return list(walk(profiler.profiler.kineto_results.experimental_event_tree()))

events = events_of(record_shapes=True)
reports = [event.extra_fields for event in events if event.tag == _EventType.Allocation]
allocated = [report for report in reports if report.alloc_size >= MIB and report.device.type == device]
assert len(allocated) >= 60, len(allocated)
assert any(event.tag == _EventType.PyCall for event in events)

events = events_of(experimental_config=_ExperimentalConfig(profile_all_threads=True))
assert len({{event.start_tid for event in events}}) >= 4

with profiler_legacy.profile(profile_memory=True, with_stack=True) as legacy:
    work()
assert any(event.name == "aten::empty" for event in legacy.function_events)

if device == "spyre":
    counters = memory.pressure_stats()
    assert counters["events"] == counters["rescued"] > 0, counters
    gc.collect()
    testing.validate(0)
print("profiled")
"""


def test_profiler_with_memory_and_stacks(fork_script: RunScript) -> None:
    script = fork_script(PROGRAM.format(device="spyre"))
    if script.returncode != 0:
        on_cpu = fork_script(PROGRAM.format(device="cpu"))
        alone = on_cpu.returncode != 0 and "AssertionError" not in on_cpu.err
        assert alone, f"fails on spyre: {script.returncode}\n{script.out}\n{script.err}\non CPU:\n{on_cpu.err}"
        pytest.xfail(f"torch's profiler fails by itself, with CPU tensors: exit status {on_cpu.returncode}")
    assert script.out.endswith("profiled\n")
