"""Warnings about cycles that held much memory."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

import cycle_tools
from conftest import FREE_THREADED
from cycle_tools import Trainer, press
from pressure_tools import MIB, Counters, fill_with_garbage, memory

pytestmark = [pytest.mark.pressure, pytest.mark.usefixtures("recording")]


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
    assert caught[0].filename == cycle_tools.__file__


@pytest.mark.filterwarnings("error")
def test_a_warning_that_is_an_error_is_reported(monkeypatch: pytest.MonkeyPatch, counters: Counters) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(unraisable.exc_type))
    memory.record_cycles(warn_bytes=MIB)
    fill_with_garbage()
    press()
    counters.check_all_rescued()
    assert memory.CycleWarning in reported
