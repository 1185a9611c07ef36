"""Sending tensors to other processes: a clear error, because device memory belongs to the process that allocated it."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch
from torch.multiprocessing import reductions
from torch.utils.data import get_worker_info


def install() -> None:
    """Makes queues, pipes and arguments of processes reject tensors, storages and modules on this device."""
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    if storage.device.type != "spyre":
        return reductions.reduce_storage(storage)
    message = (
        f"Cannot send a tensor on {storage.device} to another process: its memory belongs to this one. "
        f"Send tensor.cpu() instead, and move it to the device there."
    )
    if get_worker_info() is not None:
        # A worker of a DataLoader sends from a thread of its queue, where an error is printed and then forgotten, and
        # the loader would wait for ever. So the error travels in place of the tensor.
        return (_raise, (message,))
    raise RuntimeError(message)


def _raise(message: str) -> NoReturn:
    raise RuntimeError(message)
