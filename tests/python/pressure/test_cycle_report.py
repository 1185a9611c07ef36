"""The cycle report: what collections freed, who held it, around which cycle, and where it was allocated."""

from __future__ import annotations

import functools
import gc
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import cycle_tools
import torch_spyre._cycles as cycles
from conftest import RunScript
from cycle_tools import Logger, Trainer, fill_counted, only_holder, press, size
from pressure_tools import MIB, Counters, Node, another_thread, block, make_garbage, memory
from torch_spyre import _C

pytestmark = [pytest.mark.pressure, pytest.mark.usefixtures("recording")]


def test_bytes_are_known_without_recording(counters: Counters) -> None:
    memory.record_cycles(False)
    filled = fill_counted()
    press()
    counters.check_all_rescued()
    report = memory.cycle_report()
    assert report.collections == counters.collections()
    assert report.freed_bytes == counters["reclaimed_bytes"] == filled
    assert report.freed_blocks * MIB == filled
    assert report.last.freed_bytes == filled
    assert report.last.objects * MIB >= filled
    assert (report.holders, report.recorded_bytes, report.last.holders) == ((), 0, None)
    assert "not recorded; see torch.spyre.memory.record_cycles()" in str(report)


@pytest.mark.parametrize("who_collects", ["requester", "collector thread"])
def test_types_and_paths(counters: Counters, who_collects: str) -> None:
    Trainer()
    filled = fill_counted()
    with another_thread() if who_collects == "collector thread" else nullcontext():
        press()
    counters.check_all_rescued()
    report = memory.cycle_report()
    assert report.freed_bytes == report.recorded_bytes == counters["reclaimed_bytes"] == filled + MIB
    node, logger = report.holders
    assert (node.name, node.freed_bytes, node.cycles) == ("pressure_tools.Node", filled, filled // MIB)
    assert node.path == "Node.me → Node"
    assert (logger.name, logger.freed_bytes) == ("cycle_tools.Logger", MIB)
    assert logger.path == "Logger.trainer → Trainer.callbacks[0] → Logger"
    assert logger.filename == cycle_tools.__file__
    assert logger.line == Logger.__init__.__code__.co_firstlineno
    text = str(report)
    assert f"{size(filled)}  pressure_tools.Node, {filled // MIB} cycles" in text
    assert "Logger.trainer → Trainer.callbacks[0] → Logger" in text
    assert report.last.other_bytes == 0
    memory.reset_cycle_report()
    assert memory.cycle_report().collections == 0


def closure() -> None:
    """A hook that its module keeps, and that knows the module."""
    features = [block()]

    def hook(*_: object) -> None:
        features.extend(module.parameters())

    module = torch.nn.Identity()
    module.register_forward_hook(hook)


def exception() -> None:
    """An error that is kept, with the frame that knows it."""
    activations = block()
    try:
        raise ValueError(activations.nbytes)
    except ValueError as error:
        kept = error  # noqa: F841


def method() -> None:
    """A bound method that its own object keeps."""

    class Extractor:
        def __init__(self) -> None:
            self.features = block()
            self.callback = functools.partial(self.take, 1)

        def take(self, number: int) -> None: ...

    Extractor()


def slots() -> None:
    """No dictionary."""

    class Pair:
        __slots__ = ("other", "tensor")
        other: Pair
        tensor: torch.Tensor

    one, other = Pair(), Pair()
    one.other, other.other = other, one
    one.tensor = block()


def model() -> None:
    """Modules keep their parts in dictionaries."""

    class Head(torch.nn.Module):
        def __init__(self, owner: torch.nn.Module) -> None:
            super().__init__()
            self.__dict__["owner"] = owner
            self.scale = torch.nn.Parameter(torch.ones(MIB // 4, device="spyre"))

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = Head(self)

    Model()


@pytest.mark.parametrize(
    ("leak", "name", "path"),
    [
        (
            closure,
            "function closure.<locals>.hook",
            "function hook.module → Identity._forward_hooks[N] → function hook",
        ),
        (
            exception,
            "frame of exception",
            "frame of exception.kept → ValueError.__traceback__.tb_frame → frame of exception",
        ),
        (method, "method.<locals>.Extractor", "Extractor.callback → partial.func.__self__ → Extractor"),
        (slots, "slots.<locals>.Pair", "Pair.other → Pair.other → Pair"),
        (model, "model.<locals>.Head", "Head.owner → Model.head → Head"),
    ],
)
def test_paths_as_real_code_has_them(leak: Callable[[], None], name: str, path: str) -> None:
    leak()
    press(64 * MIB)
    holder = only_holder()
    assert holder.name.endswith(name)
    assert re.sub(r"_hooks\[\d+\]", "_hooks[N]", holder.path) == path
    assert (holder.freed_bytes, holder.cycles) == (MIB, 1)
    assert holder.filename == ("" if leak is slots else __file__)


class Square(torch.autograd.Function):
    """Keeps a tensor where only C++ sees it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x * 1)
        return x * x


def test_memory_that_only_c_plus_plus_holds() -> None:
    node = Node()
    node.tensor = Square.apply(torch.ones(MIB // 4, device="spyre", requires_grad=True)).sum()
    del node
    press(64 * MIB)
    holder = only_holder()
    assert holder.native_bytes >= MIB
    assert holder.freed_bytes > holder.native_bytes
    assert "only C++ objects referred to, such as autograd graphs" in str(memory.cycle_report())


def test_storages_that_live_on_are_not_counted() -> None:
    base = block(8 * MIB)
    node = Node()
    node.tensor = base[:MIB]
    del node
    make_garbage()
    press(56 * MIB)
    assert only_holder().freed_bytes == MIB
    assert base.sum() is not None


def test_threads_that_allocate_meanwhile(counters: Counters) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(40):
                make_garbage(4 * MIB)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    counters.check_all_rescued()
    assert memory.cycle_report().recorded_bytes > 0


def test_a_collection_of_the_programs_own_is_recorded_only_for_warnings() -> None:
    make_garbage()
    gc.collect()
    report = memory.cycle_report()
    assert (report.collections, report.other_collections, report.other_freed_bytes) == (0, 1, MIB)
    assert report.recorded_bytes == 0
    memory.record_cycles(warn_bytes=2 * MIB)
    make_garbage()
    gc.collect()
    assert only_holder().freed_bytes == MIB


@pytest.fixture
def history() -> Iterator[None]:
    """Stacks are recorded."""
    memory._record_memory_history(max_entries=100, stacks="python")
    yield
    memory._record_memory_history(enabled=None)


LINE_OF_BLOCK = block.__code__.co_firstlineno + 2
LINE_OF_LOGGED = Logger.__init__.__code__.co_firstlineno + 2


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize("recorded", [True, False])
def test_places_of_allocation(recorded: bool) -> None:
    memory.record_cycles(recorded, warn_bytes=MIB if recorded else None)
    Trainer()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        press(64 * MIB)
    report = memory.cycle_report()
    (site,) = report.sites
    assert site.frames[0] == (block.__code__.co_filename, LINE_OF_BLOCK, "block")
    assert site.frames[1] == (cycle_tools.__file__, LINE_OF_LOGGED, "__init__")
    assert (site.freed_bytes, site.freed_blocks) == (MIB, 1)
    assert f"1.00 MiB  {cycles.shown(site.frames[0][0], LINE_OF_BLOCK)} in block" in str(report)
    assert [each.sites for each in report.recent if each.freed_bytes] == [report.sites]
    if recorded:
        assert only_holder().frames == site.frames
    texts = [str(each.message) for each in caught]
    assert [f"allocated at {cycles.place(site.frames)}" in text for text in texts] == [True] * recorded


def test_places_without_history() -> None:
    make_garbage()
    press(64 * MIB)
    report = memory.cycle_report()
    assert (report.sites, only_holder().frames) == ((), ())
    assert "not recorded; see torch.spyre.memory._record_memory_history()" in str(report)


def test_set_by_the_environment(run_script: RunScript) -> None:
    code = """
    import gc, torch
    from torch_spyre import _C
    gc.disable()
    class Holder:
        def __init__(self):
            self.me, self.tensor = self, torch.empty(1 << 20, dtype=torch.uint8, device="spyre")
    for _ in range(70):
        Holder()
    print(_C.configuration()["cycles"], _C.configuration()["cycle_warning"])
    print(torch.spyre.memory.cycle_report().holders[0].path)
    """
    run = run_script(code, env={"TORCH_SPYRE_ALLOC_CONF": "device_memory:64MiB,cycles:true,cycle_warning:2MiB"})
    assert run.check() == "True 2097152\nHolder.me → Holder\n"
    assert "CycleWarning: 64.00 MiB on spyre:0 held by 64 dead reference cycles only, through Holder" in run.err


@pytest.mark.parametrize("value", [0, -1, 2**63])
def test_a_bad_size(value: int) -> None:
    with pytest.raises(ValueError, match=f"warn_bytes={value} is out of range; expected None, or bytes, from 1 to"):
        memory.record_cycles(warn_bytes=value)


def test_a_size_to_warn_of_where_nothing_is_recorded() -> None:
    before = _C.recording_cycles()
    with pytest.raises(ValueError, match="warn_bytes=5 with enabled=False: nothing is recorded; expected one or the o"):
        memory.record_cycles(False, warn_bytes=5)
    assert _C.recording_cycles() == before


@pytest.mark.parametrize("value", [True, 1.5, "1MiB"])
def test_a_size_that_is_none(value: Any) -> None:
    with pytest.raises(TypeError, match="is not an int; expected None, or bytes, from 1 to"):
        memory.record_cycles(warn_bytes=value)
    with pytest.raises(TypeError, match="enabled=1 is not a bool"):
        memory.record_cycles(1)


@pytest.mark.usefixtures("history")
def test_names_that_utf8_cannot_say() -> None:
    """A file name of other bytes comes with half surrogate pairs; they are escaped, as in stacks."""
    code = """
class Leak:
    def __init__(self):
        self.me, self.tensor = self, block()
Leak()
"""
    memory.record_cycles(warn_bytes=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile(code, "/gone/\udcff日本.py", "exec"), {"block": block, "__name__": "other\udcff"})
        press(64 * MIB)
    holder = only_holder()
    assert (holder.name, holder.filename) == ("other\\udcff.Leak", "/gone/\\udcff日本.py")
    assert (holder.freed_bytes, holder.path) == (MIB, "Leak.me → Leak")
    assert [frame[0] for frame in holder.frames[1:3]] == [holder.filename] * 2
    assert "through other\\udcff.Leak" in str(caught[0].message)
    assert str(memory.cycle_report()).encode()
