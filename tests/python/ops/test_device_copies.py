"""The copies with which calls are compared."""

from __future__ import annotations

import torch

from ops.device_copies import Copies


def test_temporary_tensors_have_copies_of_their_own() -> None:
    """Python gives the identity of an object that has died to the next one."""
    copies = Copies("cpu")
    for number in range(50):
        assert copies.of(torch.full((3,), number)).tolist() == [number] * 3


def test_shared_memory_is_shared_by_the_copies() -> None:
    copies = Copies("spyre")
    whole = torch.arange(6)
    copied, part = copies.of((whole, whole[2:]))
    copied.fill_(7)
    assert part.tolist() == [7] * 4
    assert whole.tolist() == list(range(6))
