"""When a collection is due: growth of a device and of the heap, and the share of the time. The device is a number."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from conftest import FREE_THREADED
from torch_spyre.gc import Generation
from torch_spyre.gc._limits import Limits
from torch_spyre.gc._meter import Device, Meter

YOUNG = Generation.FULL if FREE_THREADED else Generation.YOUNG
"""What growth above the limit for young collections asks for."""

MANY = 1 << 40


class Numbers:
    """A device as a meter reads it."""

    def __init__(self, in_use: int = 0) -> None:
        self.in_use = in_use
        self.events = 0

    def meter(self, capacity: int = 1600, **limits: Any) -> Meter:
        arguments: dict[str, Any] = {
            "warmup_steps": 0,
            "freeze": False,
            "young_bytes": None,
            "full_bytes": None,
            "young_objects": MANY,
            "full_objects": None,
            "time_share": 1.0,
        }
        return Meter(
            Limits.checked(**{**arguments, **limits}),
            Device(capacity, in_use_bytes=lambda: self.in_use, events=lambda: self.events),
        )


def test_growth_by_a_sixteenth_asks_for_a_young_collection() -> None:
    device = Numbers(in_use=500)
    meter = device.meter()
    device.in_use = 599
    assert meter.wanted() is Generation.NONE
    device.in_use = 600
    assert meter.wanted() is YOUNG


@pytest.mark.skipif(FREE_THREADED, reason="without young generations all growth asks for a full collection")
def test_growth_that_young_collections_leave_asks_for_a_full_one() -> None:
    device = Numbers()
    meter = device.meter()
    asked = []
    for in_use in range(100, 600, 100):
        device.in_use = in_use
        asked.append(meter.wanted())
        meter.collected(asked[-1], time_ns=1, survivors=0)
    assert asked == [Generation.YOUNG] * 3 + [Generation.FULL, Generation.YOUNG]


def test_growth_counts_from_the_least_since_the_collection() -> None:
    device = Numbers(in_use=500)
    meter = device.meter()
    device.in_use = 100
    assert meter.wanted() is Generation.NONE
    device.in_use = 200
    assert meter.wanted() is YOUNG


def test_what_a_collection_leaves_is_live() -> None:
    device = Numbers()
    meter = device.meter()
    device.in_use = 1000
    assert meter.wanted() is Generation.FULL
    meter.collected(Generation.FULL, time_ns=1, survivors=0)
    assert meter.wanted() is Generation.NONE


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, (100, 400)),
        ({"young_bytes": 7}, (7, 28)),
        ({"full_bytes": 50}, (50, 50)),
        ({"young_bytes": 7, "full_bytes": 8}, (7, 8)),
    ],
)
def test_limits_that_are_left_out(limits: dict[str, int], expected: tuple[int, int]) -> None:
    meter = Numbers().meter(**limits)
    assert (meter.young_bytes, meter.full_bytes) == expected


def test_a_tiny_device_has_limits_too() -> None:
    assert Numbers().meter(capacity=1).young_bytes == 1


def test_objects_ask_too() -> None:
    meter = Numbers().meter(young_objects=10_000)
    gc.disable()
    try:
        assert meter.wanted() is Generation.NONE
        live = [[number] for number in range(12_000)]
        assert meter.wanted() is YOUNG
        meter.collected(Generation.FULL, time_ns=1, survivors=0)
        assert meter.wanted() is Generation.NONE
        assert len(live) == 12_000
    finally:
        gc.enable()


@pytest.mark.skipif(FREE_THREADED, reason="without young generations there is nothing to survive")
def test_survivors_of_young_collections_add_up_to_a_full_one() -> None:
    meter = Numbers().meter(young_objects=100_000, full_objects=250_000)
    asked = []
    for _ in range(3):
        meter.collected(Generation.YOUNG, time_ns=1, survivors=90_000)
        asked.append(meter.wanted())
    assert asked == [Generation.NONE, Generation.NONE, Generation.FULL]


def test_a_full_collection_that_would_take_too_much_time_waits() -> None:
    device = Numbers()
    meter = device.meter(time_share=0.5)
    meter.collected(Generation.FULL, time_ns=3600 * 10**9, survivors=0)  # An hour.
    device.in_use = 1000
    assert meter.wanted() is (Generation.NONE if FREE_THREADED else Generation.YOUNG)
    assert meter.over_budget
    meter.started_ns -= 5 * 3600 * 10**9  # Five hours later: one more makes two of more than four.
    assert meter.wanted() is Generation.FULL
    assert not meter.over_budget


def test_pressure_is_counted_also_when_statistics_are_reset() -> None:
    device = Numbers()
    device.events = 5
    meter = device.meter()
    seen = []
    for device.events in (5, 7, 1, 1):
        seen.append(meter.new_events())
    assert seen == [0, 2, 1, 0]


def test_pressure_asks_until_everything_is_collected() -> None:
    meter = Numbers().meter()
    meter.pressed = True
    assert meter.wanted() is Generation.FULL
    meter.collected(Generation.YOUNG, time_ns=1, survivors=0)
    assert meter.wanted() is Generation.FULL
    meter.collected(Generation.FULL, time_ns=1, survivors=0)
    assert meter.wanted() is Generation.NONE
