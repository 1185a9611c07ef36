"""Garbage that only Python's collector frees: cycles, chains that die in waves, and finalizers that misbehave.

Finalizers run on any thread, in the middle of anything: they take no lock of the soak, and may run out of memory.
"""

from __future__ import annotations

from typing import Any

import torch
from world import MIB, World


class Node:
    """A cycle: dead as soon as it is dropped."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.me = self


class Finalized(Node):
    """A cycle whose finalizer does something."""

    def __init__(self, world: World, behaviour: str, tensor: torch.Tensor, cache: list[torch.Tensor]) -> None:
        super().__init__(tensor)
        self.world = world
        self.behaviour = behaviour
        self.cache = cache

    def __del__(self) -> None:
        match self.behaviour:
            case "frees a cache":
                self.cache.clear()
            case "allocates":
                allocate_quietly(self.world, self.tensor.device)
            case "makes garbage":
                Node(self.tensor)
            case "raises":
                raise ExpectedError("a finalizer")


class ExpectedError(Exception):
    """What finalizers and hooks raise on purpose; it must be reported as unraisable and hurt nobody."""


GARBAGE_LAYERS = 4
"""After so many collections in a row nothing is left of any garbage made here."""

BEHAVIOURS = ("frees a cache", "allocates", "makes garbage", "raises")


def allocate_quietly(world: World, device: torch.device) -> None:
    """Allocates where failing is always allowed: inside a collection or a hook."""
    try:
        torch.empty(2 * MIB, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        world.quiet_failures.append(str(error))


def chain(device: str, nbytes: int, layers: int) -> Node:
    """A cycle -> a tensor -> its autograd node -> a saved tensor -> the next cycle: each collection frees one layer."""
    held = Node(torch.empty(nbytes, dtype=torch.uint8, device=device))
    for _ in range(layers - 1):
        saved: Any = torch.ones(1, device=device)
        saved.held = held
        held = Node(torch.ones(1, device=device, requires_grad=True) * saved)
    return held
