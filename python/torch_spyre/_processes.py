"""Sending tensors to other processes: a clear error, because device memory belongs to the process that allocated it."""

from __future__ import annotations

import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch
from torch.multiprocessing import reductions

_QUEUE_THREAD = "QueueFeederThread"
"""The name of the thread with which a multiprocessing.Queue sends."""


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
    if threading.current_thread().name == _QUEUE_THREAD:
        # There an error would be printed and forgotten, and whoever reads the queue would wait for ever; the loader of
        # a DataLoader's workers, for one. So the error travels in place of the tensor.
        return (_raise, (message,))
    raise RuntimeError(message)


def _raise(message: str) -> NoReturn:
    raise RuntimeError(message)
