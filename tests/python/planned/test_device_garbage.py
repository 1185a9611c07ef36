"""A plan collects cyclic garbage that holds device memory; under pressure the allocator does, also what is frozen."""

from __future__ import annotations

import gc

import pytest
import torch

from conftest import FREE_THREADED
from pressure_tools import (
    MIB,
    Counters,
    Node,
    PausedCollection,
    block,
    fill_with_garbage,
    free_bytes,
    make_garbage,
    memory,
)
from torch_spyre.gc import Generation, Plan, planned

pytestmark = pytest.mark.usefixtures("collector_as_found")

YOUNG = Generation.FULL if FREE_THREADED else Generation.YOUNG
"""What young garbage is collected by."""


def plan_after_warmup() -> Plan:
    """A plan with no limit on the time of full collections."""
    return planned(warmup_steps=0, time_share=1, young_bytes=4 * MIB)


def test_garbage_is_collected_when_it_has_grown() -> None:
    free = free_bytes()
    with plan_after_warmup() as plan:
        steps = []
        for _ in range(9):
            make_garbage(MIB)
            steps.append(plan.step())
        assert steps == ([Generation.NONE] * 3 + [YOUNG]) * 2 + [Generation.NONE]
        assert free_bytes() == free - MIB
        assert plan.statistics.reclaimed_bytes == 8 * MIB
        latest = plan.statistics.recent[-1]
        assert (latest.step, latest.generation, latest.asked_here) == (8, YOUNG, True)
        assert latest.reclaimed_bytes == 4 * MIB
        assert latest.objects >= 4
        assert 0 < latest.time_ns <= plan.statistics.longest_ns <= plan.statistics.time_ns
        assert plan.statistics.emergencies == 0


def test_a_loop_without_garbage_collects_nothing() -> None:
    with plan_after_warmup() as plan:
        before = (plan.statistics.young, plan.statistics.full)
        live = [block()]
        for _ in range(100):
            live[0] = block()
            assert plan.step() is Generation.NONE
        assert (plan.statistics.young, plan.statistics.full) == before


@pytest.mark.skipif(FREE_THREADED, reason="there are no generations that garbage could be too old for")
def test_old_garbage_is_left_to_a_full_collection() -> None:
    free = free_bytes()
    with plan_after_warmup() as plan:
        node = Node()
        node.tensor = block(16 * MIB)
        assert plan.step() is Generation.FULL  # 16 MiB of growth, all live.
        del node
        assert plan.step() is Generation.NONE
        assert free_bytes() == free - 16 * MIB
        make_garbage(4 * MIB)
        assert plan.step() is Generation.YOUNG
        assert free_bytes() == free - 16 * MIB
        live = block(16 * MIB)
        assert plan.step() is Generation.FULL
        assert free_bytes() == free - 16 * MIB
        assert live.numel() == 16 * MIB


@pytest.mark.pressure
def test_what_does_not_wait_for_the_end_of_the_step_is_collected_by_the_allocator() -> None:
    counters = Counters()
    with planned(warmup_steps=0) as plan:
        fill_with_garbage()
        block(8 * MIB)
        counters.check_all_rescued()
        assert plan.step() is not None
        assert plan.statistics.emergencies == counters["events"] == 1
        assert plan.statistics.thawed == 0


@pytest.mark.pressure
@pytest.mark.parametrize("enabled", [True, False])
def test_a_plan_does_not_count_as_disabling_the_collector(enabled: bool) -> None:
    """Under the policy `respect_disable`: unless the program had disabled it."""
    counters = Counters()
    memory.set_pressure_policy(gc="respect_disable")
    (gc.enable if enabled else gc.disable)()
    try:
        with planned(warmup_steps=9):
            fill_with_garbage()
            if enabled:
                block(8 * MIB)
                counters.check_all_rescued()
            else:
                with pytest.raises(torch.OutOfMemoryError, match="the GC policy is respect_disable"):
                    block(8 * MIB)
        assert memory.get_pressure_policy()["gc"] == "respect_disable"
    finally:
        gc.enable()
        memory.set_pressure_policy(gc="always")
        gc.collect()


@pytest.mark.pressure
def test_frozen_garbage_is_thawed_before_an_allocation_fails() -> None:
    """What is alive at the freeze and dies later would never be collected, as after any gc.freeze."""
    counters = Counters()
    node = Node()
    node.tensor = block(40 * MIB)
    with plan_after_warmup() as plan:
        frozen = plan.statistics.frozen_objects
        assert frozen > 0
        del node
        live = block(40 * MIB)
        counters.check_all_rescued()
        assert plan.statistics.thawed == 1
        assert plan.statistics.frozen_objects == gc.get_freeze_count() == 0
        live = block(16 * MIB)
        plan.step()
        make_garbage(20 * MIB)
        assert plan.step() is Generation.FULL
        assert plan.statistics.frozen_objects >= gc.get_freeze_count() > frozen / 2
        assert live.numel() == 16 * MIB


@pytest.mark.pressure
@pytest.mark.parametrize("freeze", [True, False])
def test_an_allocation_that_fails_has_tried_to_thaw_what_was_frozen(freeze: bool) -> None:
    counters = Counters()
    with planned(warmup_steps=0, freeze=freeze) as plan:
        live = block(40 * MIB)
        with pytest.raises(torch.OutOfMemoryError):
            block(40 * MIB)
        assert counters["failed"] == 1
        assert counters["hooks.run"] == plan.statistics.thawed == int(freeze)
        assert live.numel() == 40 * MIB


@pytest.mark.pressure
def test_the_hook_that_thaws_ends_with_the_plan() -> None:
    with planned(warmup_steps=0) as plan:
        pass
    gc.freeze()
    try:
        fill_with_garbage()
        block(8 * MIB)
        assert gc.get_freeze_count() > 0
        assert plan.statistics.thawed == 0
    finally:
        gc.unfreeze()


def test_a_collection_of_another_thread_is_not_taken_for_the_own() -> None:
    free = free_bytes()
    with plan_after_warmup() as plan:
        before = plan.statistics.young + plan.statistics.full
        with PausedCollection("finalizer"):
            make_garbage(4 * MIB)
            plan.step()
            assert plan.statistics.missed == 1
            assert plan.statistics.young + plan.statistics.full == before
        plan.step()  # What is still due is collected now, unless the other collection began late enough.
        gc.collect()
        assert free_bytes() == free


def test_statistics_that_are_reset_confuse_nothing() -> None:
    with plan_after_warmup() as plan:
        memory.reset_pressure_stats()
        memory.reset_peak_memory_stats()
        memory.reset_accumulated_memory_stats()
        make_garbage(4 * MIB)
        assert plan.step() is YOUNG
