"""The collector on and nothing frozen before each test, and so found again after it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from pressure_tools import memory, testing


@pytest.fixture
def collector_as_found() -> Iterator[None]:
    """And no garbage on the device, which would be counted as a test's own."""
    gc.unfreeze()
    gc.collect()
    before = (gc.isenabled(), gc.get_freeze_count(), gc.get_threshold(), list(gc.callbacks))
    memory.reset_pressure_stats()
    yield
    assert (gc.isenabled(), gc.get_freeze_count(), gc.get_threshold(), list(gc.callbacks)) == before
    testing.validate(0)
