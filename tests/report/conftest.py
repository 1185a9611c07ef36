"""The browser, the program and the reports that the tests share. scripts/report_tests.sh names both programs."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Page

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Report:
    """A page, and the figures that `--json` printed beside it."""

    path: Path
    summary: dict[str, Any]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    running = Browser(Path(os.environ["CHROMIUM"]))
    yield running
    running.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of a desktop; that nothing was asked for and nothing went wrong is part of every test."""
    with browser.page() as opened:
        yield opened
        assert opened.requests() == []
        assert opened.problems() == []


@pytest.fixture(scope="session")
def make_report(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Report]:
    """Makes the report of a file, with arguments."""
    made: dict[tuple[Path, tuple[str, ...]], Report] = {}

    def make(file: Path, *arguments: str) -> Report:
        if (file, arguments) not in made:
            path = tmp_path_factory.mktemp("report") / f"{file.stem}.html"
            command = [os.environ["FLEXMEM"], "report", str(file), "-o", str(path), "--json", *arguments]
            printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
            made[file, arguments] = Report(path, json.loads(printed))
        return made[file, arguments]

    return make


@pytest.fixture(scope="session")
def make_trace(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a trace of a training that never was, by the example `synthetic_trace`."""

    def make(*arguments: str) -> Path:
        path = tmp_path_factory.mktemp("trace") / "training.trace"
        subprocess.run([os.environ["SYNTHETIC_TRACE"], str(path), *arguments], check=True, timeout=120)
        return path

    return make


@pytest.fixture(scope="session")
def training(make_report: Callable[..., Report], make_trace: Callable[..., Path]) -> Report:
    """A report of a training with pressure, collections and a failure."""
    return make_report(make_trace("--events", "20000"))


@pytest.fixture(scope="session")
def snapshot(make_report: Callable[..., Report]) -> Report:
    """A report of a real snapshot of four devices, one of which ran out of memory."""
    return make_report(ROOT / "tests/data/snapshots/expandable_oom_four_devices.pickle")
