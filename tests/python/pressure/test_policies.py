"""What the policy decides: whether to collect at all, and whether to try the young generations first."""

from __future__ import annotations

import gc

import pytest
import torch

from conftest import FREE_THREADED
from pressure_tools import MIB, Counters, block, fill_with_garbage, memory

pytestmark = pytest.mark.pressure


def test_escalation_finds_young_garbage_without_a_full_collection(counters: Counters) -> None:
    fill_with_garbage()
    block(8 * MIB)
    counters.check_all_rescued()
    expected = (0, 1) if FREE_THREADED else (1, 0)
    assert (counters["collections.young"], counters["collections.full"]) == expected


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
