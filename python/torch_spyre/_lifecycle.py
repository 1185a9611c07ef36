"""Loading the extension module and registering the device with torch, once per process.

Registering the name and the module `torch.spyre` always happens, also where the device cannot be used: then whatever
uses it first raises the reason, through `core()`, or through `lazy_init()`, which torch calls before it creates the
first tensor on the device.
"""

from __future__ import annotations

import atexit
import importlib
import threading
from typing import NoReturn, cast

import torch
from torch.utils import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

from torch_spyre import (
    _autograd_workers,
    _binary,
    _data_parallel,
    _dlpack,
    _fake_tensors,
    _flop_counter,
    _processes,
    _safetensors,
)
from torch_spyre._core_api import Core

_lock = threading.Lock()
_started = False
_core: Core | None = None
_failure: Exception | None = None


def start() -> None:
    """Makes the device available, the first time. Raises the reason, every time, if it cannot be used."""
    global _started
    with _lock:
        if not _started:
            _started = True
            _load()
            _register()
    if _failure is not None:
        _raise_failure()


def core() -> Core:
    """The extension module. Raises the reason if the device cannot be used."""
    if _core is None:
        _raise_failure()
    return _core


def usable() -> bool:
    """Whether core() works."""
    return _core is not None


def failure() -> Exception | None:
    """Why core() does not work."""
    return _failure


def lazy_init() -> None:
    """What torch calls before it creates the first tensor on the device. Raises the reason if that cannot work."""
    core().ensure_ready()


def _load() -> None:
    global _core, _failure
    try:
        _binary.check(torch.__version__)
        loaded = cast("Core", importlib.import_module("torch_spyre._C"))
        loaded.initialize()
    except Exception as error:
        _failure = error.with_traceback(None)
    else:
        atexit.register(_shutdown)
        _core = loaded
        _explain_failures()


def _explain_failures() -> None:
    from torch_spyre import _cycles, _held, _libraries  # They use core().

    _libraries.install()
    _cycles.install()
    _held.install()


def _shutdown() -> None:
    if _core is not None:
        from torch_spyre import _memory_history  # It uses core().

        try:
            _memory_history.end_stream()  # Its warning may be raised as an error.
        finally:
            try:
                _autograd_workers.rest(_core.device_count())
            finally:
                _core.shutdown()


def _register() -> None:
    global _core, _failure
    from torch_spyre import device_module, distributed

    try:
        rename_privateuse1_backend("spyre")
        torch._register_device_module("spyre", device_module)
        generate_methods_for_privateuse1_backend(
            for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
        )
    except RuntimeError as error:  # Another out-of-tree device took the one slot that torch has.
        _core, _failure = None, error.with_traceback(None)
    else:
        device_module._publish_submodules()
        for extension in (_data_parallel, _dlpack, _fake_tensors, _flop_counter, _processes, _safetensors):
            extension.install()
        distributed.register()


def _raise_failure() -> NoReturn:
    if _failure is None:
        raise ImportError("torch_spyre is still being imported")
    # A new exception each time: raising one again and again would grow its traceback.
    raise type(_failure)(*_failure.args) from None
