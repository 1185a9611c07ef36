"""Checks of arguments: what is refused is named, with its value and what was expected."""

from __future__ import annotations

from typing import Any


def checked_int(name: str, value: Any, what: str, least: int, most: int | None = None) -> None:
    """Refuses what is no int, bools included, or not from `least` to `most`, both allowed. None for `most` is no limit.

    Raises:
        TypeError: `value` is no int.
        ValueError: it is out of range.
    """
    if type(value) is not bool and isinstance(value, int) and value >= least and (most is None or value <= most):
        return
    span = f"at least {least}" if most is None else f"from {least} to {most}"
    expected = f"expected {what}, {span}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} is not an int; {expected}")
    raise ValueError(f"{name}={value} is out of range; {expected}")


def checked_bool(name: str, value: Any) -> None:
    """Refuses what is no bool.

    Raises:
        TypeError: `value` is no bool.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is not a bool; expected True or False")
