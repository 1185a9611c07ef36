"""Random operators on distributed tensors, `torch.distributed.tensor`: each shard draws numbers of its own.

PyTorch gives the shards different parts of one sequence: it adds to the offset that is half of the state of a Philox
generator. Generators here have no offset, their states are a CPU generator's. Moving one by an offset means another
generator, seeded with a digest of the state and the offset, which is the same on every rank.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from torch_spyre._when_imported import when_imported

_PHILOX_STATE_BYTES = 16


def install() -> None:
    """Teaches it to PyTorch, once distributed tensors are imported."""
    when_imported("torch.distributed.tensor._random", _install)


def _install(module: Any) -> None:
    philox_state = module._PhiloxState

    def state(state: Tensor) -> Any:
        return philox_state(state) if state.numel() == _PHILOX_STATE_BYTES else _MovableState(state)

    module._PhiloxState = state


class _MovableState:
    """What PyTorch expects of a generator's state that it can move.

    Args:
        state: what `get_rng_state` of a generator returns, on any device.
    """

    def __init__(self, state: Tensor) -> None:
        self._start = state.to("cpu")
        self.offset = torch.zeros(1, dtype=torch.int64)

    @property
    def state(self) -> Tensor:
        """The state `offset` after the one that this was made of, which is that one itself if the offset is 0."""
        offset = int(self.offset)
        if offset == 0:
            return self._start
        digest = hashlib.blake2b(bytes(self._start.tolist()), digest_size=8, salt=offset.to_bytes(8, "little"))
        return torch.Generator().manual_seed(int.from_bytes(digest.digest(), "little")).get_state()
