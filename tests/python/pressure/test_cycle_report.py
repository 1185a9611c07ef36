"""The cycle report: what collections freed, who held it, and that a recorded collection is one like any other."""

from __future__ import annotations

import functools
import gc
import re
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import torch_spyre._cycles as cycles
from conftest import FREE_THREADED, RunScript
from pressure_tools import MIB, Counters, Node, another_thread, block, fill_with_garbage, fits, make_garbage, memory
from torch_spyre import _C

pytestmark = pytest.mark.pressure


@pytest.fixture(autouse=True)
def recording() -> Iterator[None]:
    """Recorded, from an empty report on; as before afterwards."""
    before = _C.recording_cycles()
    memory.record_cycles()
    memory.reset_cycle_report()
    yield
    _C.record_cycles(*before)
    assert gc.get_debug() == 0
    assert gc.garbage == []


class Trainer:
    """Holds its callbacks, as trainers do."""

    def __init__(self) -> None:
        self.callbacks = [Logger(self)]


class Logger:
    """Knows its trainer, and keeps what it logged."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.logged = [block()]


def press(nbytes: int = 60 * MIB) -> None:
    """Asks for so much that garbage must go."""
    block(nbytes)


def fill_counted() -> int:
    """Fills the device with dead cycles; how many bytes they hold."""
    count = 0
    while fits(MIB):
        make_garbage()
        count += 1
    return count * MIB


def size(nbytes: int) -> str:
    """As the report prints it."""
    return f"{nbytes / MIB:.2f} MiB"


def only_holder() -> Any:
    """The one type in the report."""
    (holder,) = memory.cycle_report().holders
    return holder


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
    assert (logger.name, logger.freed_bytes) == (f"{__name__}.Logger", MIB)
    assert logger.path == "Logger.trainer → Trainer.callbacks[0] → Logger"
    assert logger.filename == __file__
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


def test_what_others_get_hold_of_is_left_alone() -> None:
    caught: list[Node] = []

    def catch(phase: str, _info: object) -> None:
        # It comes before ours, and may look at what the collector has saved.
        caught.extend(each for each in gc.garbage if type(each) is Node) if phase == "stop" else None

    make_garbage()
    gc.callbacks.insert(0, catch)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            press(64 * MIB)
        node = caught[0]
        assert node.me is node
        assert node.tensor.nbytes == MIB
    finally:
        gc.callbacks.remove(catch)
    del node
    caught.clear()
    press(64 * MIB)
    assert memory.cycle_report().freed_bytes == MIB


def test_the_garbage_and_the_flags_of_others_stay() -> None:
    mine = object()
    gc.garbage.append(mine)
    gc.set_debug(gc.DEBUG_COLLECTABLE & 0)
    make_garbage()
    press(64 * MIB)
    assert gc.garbage == [mine]
    gc.garbage.clear()
    assert only_holder().freed_bytes == MIB


def test_a_program_that_saves_garbage_keeps_it() -> None:
    make_garbage()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            press(64 * MIB)
        assert gc.get_debug() == gc.DEBUG_SAVEALL
        nodes = [each for each in gc.garbage if type(each) is Node]
        assert [node.tensor.nbytes for node in nodes] == [MIB]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    del nodes
    press(64 * MIB)


def test_finalizers_and_weak_references_work_as_ever() -> None:
    seen: list[str] = []

    class Finalized(Node):
        def __del__(self) -> None:
            seen.append("finalizer")

    node = Finalized()
    node.tensor = block()
    reference = weakref.ref(node, lambda _: seen.append("weak reference"))
    del node
    press(64 * MIB)
    assert sorted(seen) == ["finalizer", "weak reference"]
    assert reference() is None
    assert only_holder().freed_bytes == MIB


def test_an_object_that_revives_itself_lives() -> None:
    kept: list[Node] = []

    class Revived(Node):
        def __del__(self) -> None:
            kept.append(self)

    node = Revived()
    node.tensor = block()
    del node
    with pytest.raises(torch.OutOfMemoryError):
        press(64 * MIB)
    assert kept[0].me is kept[0]
    assert kept[0].tensor.nbytes == MIB
    # CPython 3.13t makes classes immortal when a second thread starts, and this one keeps the list.
    del kept.pop().tensor


def test_a_finalizer_that_removes_our_entries(counters: Counters) -> None:
    """The collection ends unseen, and what it saved is freed by the next one that is asked for."""

    class Removing(Node):
        def __del__(self) -> None:
            gc.callbacks.clear()

    fill_with_garbage()
    Removing()
    press()
    counters.check_all_rescued()
    press()
    assert gc.garbage == []


def test_an_interrupt_while_it_looks(monkeypatch: pytest.MonkeyPatch, counters: Counters) -> None:
    def interrupt(_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    fill_with_garbage()
    monkeypatch.setattr(cycles, "storage_of", interrupt)
    with pytest.raises(KeyboardInterrupt):
        press()
    press()
    counters.check_all_rescued()


def test_an_error_while_it_looks(monkeypatch: pytest.MonkeyPatch, counters: Counters) -> None:
    reported: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(str(unraisable.exc_value)))

    def fail(_: object) -> None:
        raise RecursionError("of a test")

    with monkeypatch.context() as patch:
        patch.setattr(cycles, "full_name", fail)
        fill_with_garbage()
        press()
    assert "of a test" in reported[0]
    counters.check_all_rescued()


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


def test_warnings_of_automatic_collections() -> None:
    memory.record_cycles(warn_bytes=3 * MIB)
    thresholds = gc.get_threshold()
    gc.collect()

    def run() -> None:
        gc.enable()
        try:
            gc.set_threshold(10_000)
            for _ in range(3):
                Trainer()
            # Without a GIL a thread counts its objects by hundreds, and a collection also waits until the heap has
            # grown by a quarter, unless the second threshold is 0.
            gc.set_threshold(1, 0 if FREE_THREADED else thresholds[1])
            kept: list[object] = []
            for _ in range(2000 if FREE_THREADED else 100):
                kept.append([kept])
        finally:
            gc.disable()
            gc.set_threshold(*thresholds)

    with pytest.warns(memory.CycleWarning) as caught:
        run()
    texts = [str(each.message) for each in caught]
    assert any("Logger.trainer → Trainer.callbacks[0] → Logger" in text for text in texts), texts
    assert "3.00 MiB on spyre:0 held by 3 dead reference cycles only" in texts[0]
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("error")
def test_a_warning_that_is_an_error_is_reported(monkeypatch: pytest.MonkeyPatch, counters: Counters) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(unraisable.exc_type))
    memory.record_cycles(warn_bytes=MIB)
    fill_with_garbage()
    press()
    counters.check_all_rescued()
    assert memory.CycleWarning in reported


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
    assert site.frames[1] == (__file__, LINE_OF_LOGGED, "__init__")
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
    with pytest.raises(ValueError, match=f"warn_bytes={value} is out of range; expected bytes, at least 1, or None"):
        memory.record_cycles(warn_bytes=value)


@pytest.mark.parametrize("value", [True, 1.5, "1MiB"])
def test_a_size_that_is_none(value: Any) -> None:
    with pytest.raises(TypeError, match="is not an int; expected bytes, at least 1, or None"):
        memory.record_cycles(warn_bytes=value)
    with pytest.raises(TypeError, match="enabled=1 is not a bool"):
        memory.record_cycles(1)


needs_gil = pytest.mark.skipif(FREE_THREADED, reason="other threads change objects while they are looked at")


@needs_gil
def test_dead_bytes_without_collecting() -> None:
    dead: list[object] = []

    class Quiet(Node):
        def __del__(self) -> None:
            dead.append(None)

    live = Node()
    live.tensor = block(2 * MIB)
    shared = block(4 * MIB)
    node = Quiet()
    node.tensor = block(8 * MIB)
    reference = weakref.ref(node)
    view = Node()
    view.tensor = shared[:MIB]
    del node, view
    collections = gc.get_stats()[2]["collections"]
    found = cycles.dead_bytes()
    assert found is not None
    assert found.nbytes == 8 * MIB
    (holding,) = found.holdings
    assert holding["name"].endswith("Quiet")
    assert holding["path"] == "Quiet.me → Quiet"
    assert gc.get_stats()[2]["collections"] == collections
    assert dead == []
    assert reference() is not None
    gc.collect()
    assert (len(dead), reference()) == (1, None)
    found = cycles.dead_bytes()
    assert found is not None
    assert (found.nbytes, found.holdings) == (0, [])


@needs_gil
def test_dead_bytes_of_frozen_cycles() -> None:
    make_garbage()
    gc.freeze()
    try:
        found = cycles.dead_bytes()
        assert found is not None
        assert found.nbytes == 0, "the collector does not look at them"
    finally:
        gc.unfreeze()


@needs_gil
def test_dead_bytes_has_a_time_limit() -> None:
    assert cycles.dead_bytes(timeout_s=0.0) is None
    with pytest.raises(ValueError, match="expected seconds, at least 0"):
        cycles.dead_bytes(timeout_s=-1.0)


def test_there_is_no_answer_without_a_gil() -> None:
    make_garbage()
    assert (cycles.dead_bytes() is None) == FREE_THREADED


@needs_gil
@pytest.mark.usefixtures("nothing_frozen")
@pytest.mark.parametrize("policy", ["off", "respect_disable"])
@pytest.mark.parametrize("native", [False, True])
def test_the_error_names_the_cycles_when_nothing_was_collected(policy: str, native: bool) -> None:
    memory.set_pressure_policy(gc=policy)
    filled = fill_counted()
    with another_thread() if native else nullcontext(), pytest.raises(torch.OutOfMemoryError) as caught:
        block()
    text = f"{size(filled)} is held only by dead reference cycles, by pressure_tools.Node."
    assert text in str(caught.value)
    memory.set_pressure_policy(gc="always")
    live = [block(32 * MIB), block(31 * MIB)]
    memory.set_pressure_policy(gc=policy)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        block(2 * MIB)
    assert "dead reference cycles" not in str(caught.value)
    assert len(live) == 2


def test_signals_reach_the_program(counters: Counters) -> None:
    """A handler runs in the middle of a recorded collection, and allocates."""
    texts: list[str] = []

    def handler(*_: object) -> None:
        try:
            block(65 * MIB)
        except torch.OutOfMemoryError as error:
            texts.append(str(error))

    class Signalling(Node):
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        fill_with_garbage()
        Signalling()
        press()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(texts) == 1
    assert counters["rescued"] >= 1
