"""Scenarios of memory pressure on a device of 64 MiB: who collects, who waits, who is served, and that nobody hangs.

Each really exhausts the device and asserts the counters. The watchdog of conftest.py dumps all stacks of a hang.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from pressure_tools import (
    KIB,
    MIB,
    OVERDUE_COLLECTION_GOES_ON,
    ROUNDS,
    YOUNG,
    Background,
    Counters,
    Node,
    block,
    fill_with_garbage,
    free_bytes,
    make_garbage,
    memory,
    repeat,
    run_threads,
    testing,
)

pytestmark = pytest.mark.pressure


@pytest.fixture(autouse=True)
def clean_device() -> Iterator[None]:
    """The collector off, as training loops have it, and nothing on the device but what others keep."""
    gc.collect()
    gc.disable()
    policy = memory.get_pressure_policy()
    assert torch.spyre.mem_get_info()[1] == 64 * MIB
    yield
    memory.set_pressure_policy(**policy)
    gc.enable()
    gc.collect()
    testing.validate(0)


@pytest.fixture
def counters() -> Counters:
    return Counters()


# ---- one thread


def test_dead_cycles_far_beyond_capacity(counters: Counters) -> None:
    for _ in range(1000):
        make_garbage()
    counters.check_all_rescued()
    assert counters["reclaimed_bytes"] >= 900 * MIB
    assert counters.collections() < 100


def test_garbage_in_the_oldest_generation(counters: Counters) -> None:
    gc.enable()
    nodes = []
    for _ in range(60):
        node = Node()
        node.tensor = block()
        nodes.append(node)
    for _ in range(3):
        gc.collect()  # They survive into the oldest generation, where a young collection does not look.
    del node
    nodes.clear()
    kept = block(16 * MIB)
    assert kept.numel() == 16 * MIB
    counters.check_all_rescued()
    assert counters["collections.full"] >= 1


def test_live_tensors_fill_the_device(counters: Counters) -> None:
    live = []
    with pytest.raises(torch.OutOfMemoryError) as caught:
        repeat(70, lambda: live.append(block()))
    text = str(caught.value)
    free = free_bytes()
    assert "Tried to allocate 1.00 MiB. Device 0 has a total capacity of 64.00 MiB" in text
    assert len(live) * MIB + free <= 64 * MIB
    assert free < MIB
    assert f"Python GC ran: {YOUNG} young, 1 full; 0 bytes reclaimed in " in text
    assert (counters["events"], counters["failed"], counters["rescued"]) == (1, 1, 0)
    assert (counters["collections.young"], counters["collections.full"]) == (YOUNG, 1)
    del caught
    live.clear()
    assert torch.ones(1000, device="spyre").sum().item() == 1000.0


def test_impossible_request_runs_no_collection(counters: Counters) -> None:
    ooms = torch.spyre.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError, match=r"above 64\.00 MiB, the largest region.*no collection could help"):
        block(65 * MIB)
    assert torch.spyre.memory_stats()["num_ooms"] == ooms + 1
    assert counters["events"] == counters.collections() == 0


def test_memory_fraction_is_named(counters: Counters) -> None:
    torch.spyre.set_per_process_memory_fraction(0.25)
    try:
        with pytest.raises(torch.OutOfMemoryError, match=r"above 16\.00 MiB, the memory fraction set for the device"):
            block(20 * MIB)
        live = [block() for _ in range(16)]
        with pytest.raises(torch.OutOfMemoryError, match=r"memory fraction set for the device allows 16\.00 MiB"):
            block()
        live.clear()
        for _ in range(40):
            make_garbage()
    finally:
        torch.spyre.set_per_process_memory_fraction(1.0)
    block(20 * MIB)
    assert (counters["failed"], counters["events"] - counters["rescued"]) == (1, 1)


def test_growth_without_exhaustion_runs_no_collection(counters: Counters) -> None:
    seen: list[str] = []
    gc.callbacks.append(lambda phase, _info: seen.append(phase))
    try:
        live = [block() for _ in range(free_bytes() // MIB)]
    finally:
        gc.callbacks.pop()
    assert len(live) >= 60
    assert seen == []
    assert counters["events"] == counters.collections() == 0


def test_escalation_finds_young_garbage_without_a_full_collection(counters: Counters) -> None:
    fill_with_garbage()
    block(8 * MIB)
    counters.check_all_rescued()
    assert (counters["collections.young"], counters["collections.full"]) == (YOUNG, 1 - YOUNG)


def test_without_escalation_there_is_no_young_collection(counters: Counters) -> None:
    memory.set_pressure_policy(escalate=False)
    fill_with_garbage()
    block(8 * MIB)
    counters.check_all_rescued()
    assert (counters["collections.young"], counters["collections.full"]) == (0, 1)


@pytest.mark.parametrize(
    ("policy", "key", "text"),
    [("off", "policy", "the GC policy is off"), ("respect_disable", "disabled", "the GC policy is respect_disable")],
)
def test_policies_that_do_not_collect(counters: Counters, policy: str, key: str, text: str) -> None:
    memory.set_pressure_policy(gc=policy)
    fill_with_garbage()
    with pytest.raises(torch.OutOfMemoryError, match=f"Python GC did not run: .*{text}"):
        block(8 * MIB)
    assert counters.collections() == 0
    assert counters[f"collections.skipped.{key}"] == counters["failed"] == 1
    memory.set_pressure_policy(gc="always")
    block(8 * MIB)
    assert counters["rescued"] == 1


def test_respect_disable_collects_while_enabled(counters: Counters) -> None:
    memory.set_pressure_policy(gc="respect_disable")
    fill_with_garbage()
    gc.enable()
    block(8 * MIB)
    counters.check_all_rescued()


def test_patched_collect_is_not_called(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    def patched(*_: object) -> int:
        raise AssertionError("the collector captured at import is the one to call")

    fill_with_garbage()
    monkeypatch.setattr(gc, "collect", patched)
    block(8 * MIB)
    monkeypatch.undo()
    counters.check_all_rescued()


def test_pending_exception_survives(counters: Counters) -> None:
    fill_with_garbage()

    def allocate_while_raising() -> None:
        try:
            raise KeyError("mine")
        finally:
            block(8 * MIB)

    with pytest.raises(KeyError, match="mine"):
        allocate_while_raising()
    counters.check_all_rescued()


def test_exception_pending_in_c_survives(counters: Counters) -> None:
    fill_with_garbage()
    assert testing.allocate_with_pending_exception(0, 8 * MIB) == (None, "pending")
    counters.check_all_rescued()


def test_exception_in_a_finalizer_is_unraisable(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(str(report.exc_value)))

    class Failing(Node):
        def __del__(self) -> None:
            raise ValueError("from the finalizer")

    Failing()
    fill_with_garbage()  # Collects first: the failing one must be made after that.
    Failing()
    block(8 * MIB)
    counters.check_all_rescued()
    assert "from the finalizer" in reported


def test_garbage_in_four_waves(counters: Counters) -> None:
    memory.set_pressure_policy(escalate=False)
    registry: dict[int, Node] = {}

    class Layer(Node):
        """Alive in the registry until the layer before it is finalized: one layer for each collection."""

        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def __del__(self) -> None:
            registry.pop(self.number + 1, None)

    for number in range(1, 5):
        registry[number] = Layer(number)
    registry[4].tensor = block(60 * MIB)
    del registry[1]
    block(16 * MIB)
    counters.check_all_rescued()
    assert counters["collections.full"] == 4


def test_chain_through_autograd_nodes(counters: Counters) -> None:
    """A cycle -> a tensor -> its autograd node -> a saved tensor -> the next cycle loses one layer each collection."""
    memory.set_pressure_policy(escalate=False)
    held = Node()
    held.tensor = block(56 * MIB)
    for _ in range(3):
        saved = torch.ones(1, device="spyre")
        saved.held = held  # type: ignore[attr-defined]
        node = Node()
        node.tensor = torch.ones(1, device="spyre", requires_grad=True) * saved
        held = node
    del node, held, saved
    block(16 * MIB)
    counters.check_all_rescued()
    assert counters["collections.full"] == 4


def test_cache_emptied_by_a_finalizer(counters: Counters) -> None:
    cache = [block() for _ in range(60)]

    class Owner(Node):
        def __del__(self) -> None:
            cache.clear()

    Owner()
    block(32 * MIB)
    counters.check_all_rescued()
    assert cache == []


def test_allocation_in_a_finalizer_is_reentrant(counters: Counters) -> None:
    failures: list[str] = []

    class Greedy(Node):
        def __del__(self) -> None:
            try:
                block(60 * MIB)
            except torch.OutOfMemoryError as error:
                failures.append(str(error))

    live = block(40 * MIB)
    Greedy()
    fill_with_garbage()  # Runs the first finalizer, in a collection of the program's own.
    Greedy()
    block(4 * MIB)
    del live
    assert len(failures) == 2
    assert all("already inside a collection" in text for text in failures)
    assert counters["collections.skipped.reentrant"] == 2
    assert counters["rescued"] >= 1


def test_training_step_with_threshold_one(counters: Counters) -> None:
    threshold = gc.get_threshold()
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    model = model.to("spyre")
    optimizer = torch.optim.AdamW(model.parameters())  # Imports much, the first time.
    fill_with_garbage(256 * KIB)
    gc.set_threshold(1)
    gc.enable()
    try:
        for _ in range(3):
            loss = model(torch.randn(16, 3, 8, 8, device="spyre")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert loss.isfinite().item()
    finally:
        gc.set_threshold(*threshold)
        gc.disable()
    for _ in range(300):
        make_garbage()
    counters.check_all_rescued()


# ---- the paths into the ladder


def test_attached_thread_collects_inline(counters: Counters) -> None:
    threads: set[int] = set()

    class Owner(Node):
        def __del__(self) -> None:
            threads.add(threading.get_ident())

    fill_with_garbage()
    Owner()
    assert testing.allocate_attached(0, 8 * MIB) is None
    counters.check_all_rescued()
    assert threads == {threading.get_ident()}


def test_single_threaded_program_runs_finalizers_on_its_thread(counters: Counters) -> None:
    threads: set[int] = set()

    class Owner(Node):
        def __del__(self) -> None:
            threads.add(threading.get_ident())

    for after_backward in (False, True):
        if after_backward:  # Autograd's workers are thread states that run no frame: they do not count.
            torch.ones(4, device="spyre", requires_grad=True).square().sum().backward()
        threads.clear()
        fill_with_garbage()
        Owner()
        block(8 * MIB)
        assert threads == {threading.get_ident()}
    counters.check_all_rescued()


def test_other_python_threads_make_the_collector_thread_collect(counters: Counters) -> None:
    threads: set[int] = set()

    class Owner(Node):
        def __del__(self) -> None:
            threads.add(threading.get_ident())

    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    fill_with_garbage()
    Owner()
    block(8 * MIB)
    done.set()
    other.join()
    counters.check_all_rescued()
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_pressure_in_backward(counters: Counters) -> None:
    weights = torch.ones(2 * MIB // 4, device="spyre", requires_grad=True)
    threads: set[int] = set()

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone()

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            threads.add(threading.get_ident())
            fill_with_garbage()
            return gradient * 2

    output = Watched.apply(weights * 3)
    output.sum().backward()
    assert weights.grad is not None
    assert weights.grad[0].item() == 6.0
    counters.check_all_rescued()
    assert threading.get_ident() not in threads, "a device's gradients are computed on a worker of autograd"


def test_native_threads(counters: Counters) -> None:
    fill_with_garbage()
    with Background(lambda: make_garbage(256 * KIB)):
        errors = testing.allocate_native(0, 2 * MIB, 16, 50)
    assert errors == []
    counters.check_all_rescued()


def test_native_thread_joined_with_the_interpreter_held(counters: Counters) -> None:
    memory.set_pressure_policy(timeout_ms=500)
    fill_with_garbage()
    error, seconds = testing.join_native_attached(0, 8 * MIB)
    assert error is not None
    assert "no collection could run before the deadline" in error
    assert 0.4 < seconds < 5
    assert counters["failed"] == counters["collections.skipped.timeout"] == 1
    assert testing.allocate_native(0, 8 * MIB, 1, 1) == []
    assert counters["rescued"] == 1 or OVERDUE_COLLECTION_GOES_ON


def test_lock_of_the_allocating_thread_wanted_by_the_interpreter_holder(counters: Counters) -> None:
    memory.set_pressure_policy(timeout_ms=500)
    fill_with_garbage()
    error, seconds = testing.want_lock_of_allocating_thread(0, 8 * MIB)
    assert error is not None
    assert "no collection could run before the deadline" in error
    assert seconds < 5
    assert counters["failed"] == 1
    block(8 * MIB)
    assert counters["rescued"] == 1 or OVERDUE_COLLECTION_GOES_ON


# ---- the reference's three scenarios


def test_python_thread_against_pressure(counters: Counters) -> None:
    """T1 holds the GIL and takes the mutex again and again; T2 is under pressure."""
    with Background(lambda: testing.allocate_attached(0, 128)) as small:
        for _ in range(500):
            make_garbage()
    assert small.steps > 0
    counters.check_all_rescued()


def test_two_python_threads_under_pressure(counters: Counters) -> None:
    run_threads(2, lambda: repeat(300, make_garbage))
    counters.check_all_rescued()


def test_native_thread_against_python_thread(counters: Counters) -> None:
    """T1 is native and under pressure; T2 holds the GIL and wants the mutex."""
    fill_with_garbage()
    with Background(lambda: testing.allocate_attached(0, 128)) as attached:
        assert testing.allocate_native(0, 4 * MIB, 1, 200) == []
    assert attached.steps > 0
    counters.check_all_rescued()


# ---- many threads


def test_eight_threads_share_collections(counters: Counters) -> None:
    run_threads(8, lambda: repeat(40, lambda: make_garbage(6 * MIB)))
    counters.check_all_rescued()
    assert counters["coalesced"] > 0
    assert counters.collections() < counters["events"]


def test_eight_threads_many_times_in_a_row(counters: Counters) -> None:
    """All exhausted together, each with garbage of its own. The simple designs fail here by the thousand."""
    for _ in range(ROUNDS):
        run_threads(8, lambda: repeat(125, make_garbage))
    counters.check_all_rescued()
    assert counters["events"] >= ROUNDS


def test_a_thousand_short_lived_threads(counters: Counters) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            make_garbage()
        except BaseException as error:
            errors.append(error)

    for _ in range(125):
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    counters.check_all_rescued()


def test_frees_while_the_mutex_is_held_are_pending_and_counted() -> None:
    tensors = [block(64 * KIB) for _ in range(300)]
    before = torch.spyre.memory_stats()
    testing.while_mutex_is_held(0, tensors.clear)  # A free that waited for the mutex would hang.
    after = torch.spyre.memory_stats()
    assert after["allocation.all.freed"] - before["allocation.all.freed"] == 300
    assert before["allocated_bytes.all.current"] - after["allocated_bytes.all.current"] == 300 * 64 * KIB


def test_callbacks_cleared_in_a_collection_leave_no_mark(counters: Counters) -> None:
    """This thread once began a collection whose end nobody saw; now another thread is in the middle of one."""
    entered, leave = threading.Event(), threading.Event()

    def clear(phase: str, info: dict[str, int]) -> None:
        gc.callbacks.clear()

    class Pausing(Node):
        def __del__(self) -> None:
            entered.set()
            leave.wait()

    def leave_when_pressed() -> None:
        while counters["events"] == 0:
            pass
        leave.set()

    fill_with_garbage()
    gc.callbacks.append(clear)
    gc.collect(0)
    while free_bytes() >= MIB:  # What the young collection freed.
        make_garbage()
    Pausing()
    threads = [threading.Thread(target=target) for target in (gc.collect, leave_when_pressed)]
    threads[0].start()
    entered.wait()
    threads[1].start()
    try:
        block()
    finally:
        leave.set()
        for thread in threads:
            thread.join()
    counters.check_all_rescued()
