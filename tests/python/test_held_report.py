"""Who holds device memory: by live tracebacks, frozen garbage, and place."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from conftest import FREE_THREADED, RunScript
from pressure_tools import MIB, Node, PausedCollection, block, memory, testing
from torch_spyre import _held


@pytest.fixture(autouse=True)
def nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    gc.collect()
    yield
    gc.unfreeze()
    gc.collect()


def fail(batch: torch.Tensor) -> None:
    local = [batch, block(4 * MIB)]
    raise ValueError(len(local))


def caught(batch: torch.Tensor) -> ValueError:
    try:
        fail(batch)
    except ValueError as error:
        return error
    raise AssertionError


def test_a_traceback_holds_what_nothing_else_does() -> None:
    shared = block(2 * MIB)
    error: ValueError | None = caught(shared)
    report = memory.held_report()
    assert report.traceback_bytes == 4 * MIB
    (holding,) = report.tracebacks
    assert (holding.name, holding.filename) == ("fail", __file__)
    assert holding.line == fail.__code__.co_firstlineno + 2
    assert "4.00 MiB in the locals of fail" in str(report)
    assert shared is not None
    del error
    assert memory.held_report().traceback_bytes == 0


def test_a_frame_that_runs_is_no_traceback_s() -> None:
    local = block(3 * MIB)
    try:
        raise ValueError
    except ValueError:
        assert memory.held_report().traceback_bytes == 0
    assert local.numel() == 3 * MIB


def share(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor with the same storage, that does not refer to the first as a view does."""
    source: Any = tensor  # PyTorch's annotations of set_ know storages only.
    shared: torch.Tensor = torch.empty(0, dtype=torch.uint8, device="spyre").set_(source)
    return shared


def test_a_shared_storage_is_counted_once_and_only_if_all_of_it_is_held() -> None:
    shared = [block(4 * MIB)]

    def run() -> None:
        first, second = shared.pop(), None
        second = share(first)
        raise ValueError(len(second))

    outside = share(shared[0])
    try:
        run()
    except ValueError as error:
        kept = error
    assert memory.held_report().traceback_bytes == 0
    del outside
    assert memory.held_report().traceback_bytes == 4 * MIB
    del kept


def test_objects_between_frame_and_tensor() -> None:
    class Module:
        def __init__(self) -> None:
            self.state = {"weights": [block(4 * MIB)]}

    def run() -> None:
        module = Module()
        closure = lambda: module  # noqa: E731
        raise ValueError(closure)

    try:
        run()
    except ValueError as error:
        error.args = ()
        kept = error
    assert memory.held_report().traceback_bytes == 4 * MIB
    del kept


def test_looking_leaves_no_reference() -> None:
    error = caught(block(MIB))
    before = memory.memory_allocated()
    memory.held_report()
    del error
    assert memory.memory_allocated() == before - 5 * MIB


@pytest.mark.skipif(FREE_THREADED, reason="there is no list of frozen objects without a GIL")
def test_frozen_garbage_is_told_from_what_is_frozen_and_alive() -> None:
    gc.disable()
    try:
        alive, dead = Node(), Node()
        alive.tensor, dead.tensor = block(4 * MIB), block(2 * MIB)
        del dead
        gc.freeze()
        report = memory.held_report()
        assert report.frozen_bytes == 2 * MIB
        assert "by frozen garbage     2.00 MiB" in str(report)
        assert alive.tensor.numel() == 4 * MIB
        gc.unfreeze()
        gc.collect()
        assert memory.held_report().frozen_bytes == 0
    finally:
        gc.enable()


@pytest.mark.skipif(FREE_THREADED, reason="there is no list of frozen objects without a GIL")
def test_to_look_at_frozen_garbage_does_not_change_it() -> None:
    gc.disable()
    try:
        for _ in range(3):
            Node().tensor = block(2 * MIB)
        gc.freeze()
        assert [memory.held_report().frozen_bytes for _ in range(4)] == [6 * MIB] * 4
        for _ in range(3):
            with pytest.raises(torch.OutOfMemoryError, match=r"6\.00 MiB is held only by garbage that gc\.freeze\(\)"):
                block(torch.spyre.mem_get_info()[1])
    finally:
        gc.unfreeze()
        gc.enable()


@pytest.mark.skipif(FREE_THREADED, reason="there is no list of frozen objects without a GIL")
def test_frozen_garbage_may_have_parts_made_later() -> None:
    """A collection does not free them either: what it does not look at refers to them."""
    gc.disable()
    try:
        late_dictionary, late_tensor, late_cycle = Node(), Node(), Node()
        late_dictionary.tensor = block(4 * MIB)
        gc.freeze()
        assert len(vars(late_dictionary)) == 2, "made when it is asked for"
        late_tensor.tensor = block(2 * MIB)
        late_cycle.tensor = Node()  # type: ignore[assignment]
        late_cycle.tensor.tensor = block(MIB)  # type: ignore[attr-defined]
        assert memory.held_report().frozen_bytes == 0
        del late_dictionary, late_tensor, late_cycle
        for _ in range(2):
            assert memory.held_report().frozen_bytes == 7 * MIB
            gc.collect()
        with pytest.raises(torch.OutOfMemoryError, match=r"7\.00 MiB is held only by garbage that gc\.freeze\(\)"):
            block(torch.spyre.mem_get_info()[1])
    finally:
        gc.unfreeze()
        gc.enable()
    gc.collect()
    assert memory.held_report().frozen_bytes == 0


@pytest.mark.skipif(FREE_THREADED, reason="there is no list of frozen objects without a GIL")
def test_what_other_garbage_holds_is_frozen_garbage_if_a_collection_leaves_it() -> None:
    gc.disable()
    before = memory.memory_allocated()
    try:
        tensor, cycle, others = block(2 * MIB), Node(), Node()
        cycle.tensor = block(4 * MIB)
        gc.freeze()
        others.tensor = block(MIB)
        vars(others)["held"] = [tensor, cycle]
        holder = Node()
        vars(holder)["held"] = vars(others)["held"]
        holder.tensor = block(8 * MIB)
        del vars(others)["held"], others.tensor
        assert memory.held_report().frozen_bytes == 0
        del tensor, cycle, holder
        assert memory.held_report().frozen_bytes == 4 * MIB
        gc.collect()
        assert memory.memory_allocated() - before == 4 * MIB
        assert memory.held_report().frozen_bytes == 4 * MIB
    finally:
        gc.unfreeze()
        gc.enable()


@pytest.mark.skipif(not FREE_THREADED, reason="with a GIL it is known")
def test_frozen_garbage_is_not_known_without_a_gil() -> None:
    gc.freeze()
    assert memory.held_report().frozen_bytes is None


@pytest.mark.skipif(FREE_THREADED, reason="without a GIL it is never known")
def test_frozen_garbage_is_not_known_if_there_is_no_time_to_look(run_script: RunScript) -> None:
    """In a process without tensors, where it is unlikely that there is any."""
    run_script(
        """
        import gc
        from torch_spyre._lifecycle import core

        core().frozen_garbage_bytes(0, 10.0)
        gc.freeze()
        assert core().frozen_garbage_bytes(0, 10.0) == 0
        assert core().frozen_garbage_bytes(0, 1e-9) is None
        """
    )


def test_nobody_looks_longer_than_the_request_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks keeps what it looks at: longer, and the next request's collection would find no garbage."""
    timeouts: list[float] = []

    def look(_device: int, timeout_s: float) -> tuple[list[Any], bool]:
        timeouts.append(timeout_s)
        return [], True

    monkeypatch.setattr(_held, "traceback_holdings", look)
    policy = memory.get_pressure_policy()
    nbytes = torch.spyre.mem_get_info()[1]
    kept = block()
    try:
        with PausedCollection("finalizer"):
            memory.set_pressure_policy(timeout_ms=100)
            with pytest.raises(torch.OutOfMemoryError):
                block(nbytes)
        # A busy machine may leave no time at all for it.
        assert all(timeout <= 0.1 for timeout in timeouts)
        memory.set_pressure_policy(gc="off", timeout_ms=10_000)
        assert testing.allocate_attached(0, nbytes) is not None
        assert 0.1 < timeouts[-1] <= 1
    finally:
        memory.set_pressure_policy(**policy)
    del kept


def test_holders_by_place() -> None:
    def load() -> list[torch.Tensor]:
        return [block(MIB) for _ in range(3)]

    memory._record_memory_history()
    try:
        kept, more = load(), block(2 * MIB)
        report = memory.held_report()
    finally:
        memory._record_memory_history(enabled=None)
    assert report.recorded
    place = next(each for each in report.holders if each.name == "block")
    assert (place.nbytes, place.blocks) == (5 * MIB, 4)
    assert place.filename == sys.modules["pressure_tools"].__file__
    assert report.nbytes == memory.memory_allocated()
    assert f"5.00 MiB in 4 blocks at {place.filename}:{place.line} (block)" in str(report)
    del kept, more


def test_without_history_the_report_says_how_to_record() -> None:
    report = memory.held_report()
    assert not report.recorded
    assert "_record_memory_history()" in str(report)
