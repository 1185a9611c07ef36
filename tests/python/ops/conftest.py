"""Options and counts of the operator sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent

COUNTS: pytest.StashKey[Counter[str]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COUNTS] = Counter()


@pytest.fixture
def counts(pytestconfig: pytest.Config) -> Counter[str]:
    """What the sweep did, printed at the end."""
    return pytestconfig.stash[COUNTS]


@pytest.fixture
def all_samples(pytestconfig: pytest.Config) -> bool:
    """Whether every sample is to run, as `make opinfo` asks for."""
    return bool(pytestconfig.getoption("--all-samples"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, parts = map(int, config.getoption("--part").split("/"))
    thorough = config.getoption("--all-samples")
    here = [item for item in items if FOLDER in item.path.parents]
    wanted = [item for item in here if thorough or not item.name.startswith("test_thorough_")]
    kept = set(map(id, wanted[part::parts]))
    left_out = {id(item) for item in here if id(item) not in kept}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
    items[:] = [item for item in items if id(item) not in left_out]


@pytest.hookimpl(hookwrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Iterator[None]:
    yield
    counted = config.stash[COUNTS]
    if counted:
        terminalreporter.section("operators compared with CPU")
        for name in sorted(counted):
            terminalreporter.write_line(f"{counted[name]:8d} {name}")
