"""The error of a file that is not a memory snapshot, or not one that can be read."""

from __future__ import annotations


class SnapshotError(ValueError):
    """What is wrong: the file, the place in it, and what was expected there."""
