"""A callback for Lightning's `Trainer`: each training batch is a step of a collection plan.

    from torch_spyre.gc.lightning import PlannedCollection

    Trainer(..., callbacks=[PlannedCollection(planned())]).fit(model)

It works with `lightning.pytorch` and with `pytorch_lightning`: with those that the program has imported, else with the
first that is installed. Importing this module raises ImportError if neither is.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from torch_spyre.gc._lightning_hooks import LightningHooks

__all__ = ["PlannedCollection"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _bases() -> tuple[type, ...]:
    loaded = [sys.modules[name] for name in _PACKAGES if name in sys.modules]
    for name in () if loaded else _PACKAGES:
        try:
            loaded = [importlib.import_module(name)]
            break
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise
    if not loaded:
        raise ImportError(f"torch_spyre.gc.lightning needs {' or '.join(_PACKAGES)}; neither is installed")
    return tuple(module.Callback for module in loaded)


_Callback: Any = type("_Callback", (LightningHooks, *_bases()), {})


class PlannedCollection(_Callback):
    """Makes the steps of `plan`, or of one with the defaults of `planned`. Enters it when training starts, unless it is
    active, and then leaves it when training ends or fails.
    """
