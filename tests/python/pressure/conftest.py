"""What the scenarios share: a clean device before and after each, the counters, and scripts in forked processes."""

from __future__ import annotations

import gc
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from conftest import RunScript, Script, ScriptServer
from pressure_tools import MIB, ROUNDS, Counters, fill, memory, testing
from torch_spyre import _C

TESTS = Path(__file__).parent.parent


@pytest.fixture(scope="session", autouse=True)
def short_collections(pytestconfig: pytest.Config) -> Iterator[None]:
    """With --quick: collections that look at the tests' objects only, and take a fraction of the time."""
    if pytestconfig.getoption("quick"):
        gc.collect()
        gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def nothing_frozen(pytestconfig: pytest.Config) -> Iterator[None]:
    """For tests of what errors say: objects frozen by others are none of theirs."""
    gc.unfreeze()
    yield
    if pytestconfig.getoption("quick"):
        gc.collect()
        gc.freeze()


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
    memory.reset_pressure_stats()
    return Counters()


@pytest.fixture
def recording() -> Iterator[None]:
    """Collections are recorded, from an empty report on; as before afterwards."""
    before = _C.recording_cycles()
    memory.record_cycles()
    memory.reset_cycle_report()
    yield
    _C.record_cycles(*before)
    assert gc.get_debug() == 0
    assert gc.garbage == []


@pytest.fixture
def rounds(pytestconfig: pytest.Config) -> int:
    """How often a stress test goes round: fewer times where the whole suite is repeated."""
    return 5 if pytestconfig.getoption("quick") else ROUNDS


@pytest.fixture
def cache() -> list[torch.Tensor]:
    """Live memory, all of it. Without a GIL a little may be left of other threads' tensors."""
    filling: list[torch.Tensor] = []
    fill(filling)
    return filling


PREAMBLE = """
import gc, os, sys, threading, torch
sys.path.insert(0, {tests!r})
from pressure_tools import *
gc.disable()
"""


@pytest.fixture
def fork_script(script_server: ScriptServer, tmp_path: Path) -> RunScript:
    """Runs Python code in a process of its own, with the names of pressure_tools, and the collector off."""

    def run(code: str, *, env: Mapping[str, str] | None = None) -> Script:
        preamble = PREAMBLE.format(tests=str(TESTS))
        return script_server.run(preamble + textwrap.dedent(code), tmp_path, env or {})

    return run
