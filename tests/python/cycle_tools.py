"""What the tests of recorded collections share: garbage whose holders have names, and the report."""

from __future__ import annotations

from typing import Any

from pressure_tools import MIB, block, fits, make_garbage, memory


class Trainer:
    """Holds its callbacks, as trainers do."""

    def __init__(self) -> None:
        self.callbacks = [Logger(self)]


class Logger:
    """Knows its trainer, and keeps what it logged."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.logged = [block()]


def press(nbytes: int = 60 * MIB) -> None:
    """Asks for so much that garbage must go."""
    block(nbytes)


def fill_counted() -> int:
    """Fills the device with dead cycles; how many bytes they hold."""
    count = 0
    while fits(MIB):
        make_garbage()
        count += 1
    return count * MIB


def size(nbytes: int) -> str:
    """As the report prints it."""
    return f"{nbytes / MIB:.2f} MiB"


def only_holder() -> Any:
    """The one type in the report."""
    (holder,) = memory.cycle_report().holders
    return holder
