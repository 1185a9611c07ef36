"""`torch.distributed` on spyre: collectives of gloo's on the bytes of spyre tensors, without copies.

The backend is called `spyre`. `init_process_group()` without a backend takes it, since spyre is then the accelerator of
the machine; `init_process_group("spyre")` takes it for tensors on spyre and on the CPU, and
`init_process_group("cpu:gloo,spyre:spyre")` gives CPU tensors a gloo of their own.

The collectives are in the extension module, `process_group.cpp`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from torch_spyre import _lifecycle
from torch_spyre.distributed import _random_states


def register() -> None:
    """Makes the backend known, where PyTorch was built with `torch.distributed`."""
    if distributed.is_available():
        _random_states.install()
        distributed.Backend.register_backend("spyre", _create, devices=["spyre", "cpu"])


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Makes one process's part of a group. Raises the reason if the devices cannot be used."""
    _lifecycle.lazy_init()
    if not distributed.is_gloo_available():
        raise RuntimeError("the backend 'spyre' needs gloo, which this PyTorch was built without")
    gloo = distributed.ProcessGroupGloo(store, rank, size, timeout=timeout)
    # A group is the only thing that carries a backend from Python to C++ and back.
    carrier = distributed.ProcessGroup(store, rank, size)
    carrier._register_backend(torch.device("cpu"), distributed.ProcessGroup.BackendType.GLOO, gloo)
    torch.ops.spyre.add_distributed_backend(carrier.boxed())
    return carrier._get_backend(torch.device("spyre"))
