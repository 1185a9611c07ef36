"""A recorded collection is one like any other: for finalizers, for what others saved, for signals."""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_spyre._cycles as cycles
from cycle_tools import only_holder, press
from pressure_tools import (
    MIB,
    Counters,
    Node,
    block,
    fill_with_garbage,
    make_garbage,
    memory,
    running,
    testing,
)

pytestmark = [pytest.mark.pressure, pytest.mark.usefixtures("recording")]


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


def as_if_of(module: types.ModuleType, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as if the file of a module defined it."""
    assert isinstance(function, types.FunctionType)
    return types.FunctionType(function.__code__.replace(co_filename=module.__file__ or ""), globals())


class ArrivedError(Exception):
    """What a handler raises."""


def handle(*_: object) -> None:
    raise raised("of a handler")


raised: type[BaseException] = ArrivedError


@pytest.fixture(params=[ArrivedError, KeyboardInterrupt, SystemExit])
def signalled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[BaseException]]:
    """A signal arrives in the middle of the next look at garbage, and its handler raises."""

    def name(held_by: object) -> str:
        signal.raise_signal(signal.SIGUSR1)
        return str(held_by)

    before = signal.signal(signal.SIGUSR1, handle)
    with monkeypatch.context() as patch:
        patch.setattr(cycles, "full_name", as_if_of(cycles, name))
        patch.setattr(sys.modules[__name__], "raised", request.param)
        yield request.param
    signal.signal(signal.SIGUSR1, before)


def files(error: BaseException) -> list[str]:
    """Of the frames that an exception came through."""
    return [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]


def repeat_bytecode() -> None:
    """What was put off is raised between bytecodes."""
    for _ in range(1000):
        pass


def then_repeat_bytecode(function: Callable[[], object]) -> None:
    function()
    repeat_bytecode()


def test_what_a_handler_raises_meanwhile_reaches_the_program(
    signalled: type[BaseException], counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    fill_with_garbage()
    with pytest.raises(signalled, match="of a handler") as caught:
        then_repeat_bytecode(press)
    assert cycles.__file__ not in files(caught.value)
    assert files(caught.value)[-1] == __file__
    monkeypatch.undo()
    assert reported == []
    press(64 * MIB)  # The exception keeps nothing of what was looked at.
    counters.check_all_rescued()


def test_what_a_handler_raises_in_a_collection_of_the_programs_own(signalled: type[BaseException]) -> None:
    memory.record_cycles(warn_bytes=1)
    late: list[str] = []

    class Finalized(Node):
        def __del__(self) -> None:
            repeat_bytecode()
            late.append("finalizer")

    def after(phase: str, _info: object) -> None:
        if phase == "stop":
            repeat_bytecode()
            late.append("callback")

    Finalized().tensor = block()
    gc.callbacks.insert(1, after)
    try:
        with pytest.raises(signalled):
            then_repeat_bytecode(gc.collect)
    finally:
        gc.callbacks.remove(after)
    assert late == ["finalizer", "callback"], "the rest of the collection ran undisturbed"


def test_what_a_handler_raises_in_a_search(signalled: type[BaseException]) -> None:
    make_garbage()
    with pytest.raises(signalled):
        then_repeat_bytecode(cycles.dead_bytes)


class StopError(Exception):
    """What one thread sends to another."""


sent: list[type[BaseException]] = []


def name_and_send(held_by: object) -> str:
    """What a thread that looks calls there meanwhile, as if another one had."""
    if sent:
        thread, kind = ctypes.c_ulong(threading.get_ident()), ctypes.py_object(sent.pop())
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, kind) == 1
        for _ in range(1000):
            pass
    return str(held_by)


def search_for_cycles() -> None:
    make_garbage()
    cycles.dead_bytes()


def collect_by_itself() -> None:
    memory.record_cycles(warn_bytes=1)
    Node().tensor = block()
    gc.collect()


def be_rescued() -> None:
    fill_with_garbage()
    assert testing.allocate_attached(0, MIB) is None


@pytest.mark.parametrize("on_main", [False, True], ids=["", "main thread"])
@pytest.mark.parametrize("kind", [StopError, SystemExit, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("look", [search_for_cycles, collect_by_itself, be_rescued])
def test_what_a_thread_is_sent_while_it_looks_reaches_it(
    look: Callable[[], None], kind: type[BaseException], on_main: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    monkeypatch.setattr(cycles, "full_name", as_if_of(cycles, name_and_send))
    monkeypatch.setattr(sys.modules[__name__], "sent", [kind])
    raised_here: list[type[BaseException]] = []

    def work() -> None:
        try:
            then_repeat_bytecode(look)
        except BaseException as error:
            raised_here.append(type(error))

    if on_main:
        work()
    else:
        with running(work):
            pass
    repeat_bytecode()  # Nothing is left for the main thread.
    assert (raised_here, sent, reported) == ([kind], [], [])


def test_an_interrupt_while_it_looks(monkeypatch: pytest.MonkeyPatch, counters: Counters) -> None:
    def interrupt(tensor: object) -> None:
        del tensor  # What this frame holds, the exception keeps.
        monkeypatch.undo()
        raise KeyboardInterrupt

    fill_with_garbage()
    monkeypatch.setattr(cycles, "storage_of", interrupt)
    with pytest.raises(KeyboardInterrupt):
        then_repeat_bytecode(press)
    press()
    counters.check_all_rescued()


@pytest.mark.parametrize("kind", [RecursionError, KeyError])
def test_an_error_while_it_looks(monkeypatch: pytest.MonkeyPatch, counters: Counters, kind: type[Exception]) -> None:
    """A mistake of ours is reported, and the program goes on."""
    reported: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(str(unraisable.exc_value)))

    def fail(_: object) -> None:
        raise kinds[0]("of a test")

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "kinds", [kind])
        patch.setattr(cycles, "full_name", as_if_of(cycles, fail))
        fill_with_garbage()
        press()
    assert "of a test" in reported[0]
    counters.check_all_rescued()


kinds: list[type[Exception]] = []


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
