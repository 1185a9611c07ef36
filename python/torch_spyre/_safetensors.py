"""safetensors: `load_file(device="spyre")`.

safetensors knows other devices by name and this one only by its index, so that the name is replaced by the index. That
has to happen when safetensors has been imported, which may be now or later.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

from torch_spyre._when_imported import when_imported

_PACKAGE = "safetensors"


def install() -> None:
    """Teaches safetensors the device's name."""
    when_imported(_PACKAGE, _teach)


def _teach(package: ModuleType) -> None:
    """Replaces `safe_open` in the package, and in the module that may have taken it from there already."""
    replaced = _named(package.safe_open)
    torchs = sys.modules.get(f"{_PACKAGE}.torch")
    for module in (package, torchs):
        if module is not None and hasattr(module, "safe_open"):
            module.safe_open = replaced  # type: ignore[attr-defined]


def _named(opened: Any) -> type:
    class SafeOpenType(type):
        """Makes files that are open instances of the class that seems to have opened them."""

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, opened)

    class safe_open(metaclass=SafeOpenType):  # noqa: N801
        __doc__ = opened.__doc__

        def __new__(cls, filename: Any, framework: str, device: Any = "cpu", *rest: Any, **named: Any) -> Any:
            return opened(filename, framework, _index_of(device), *rest, **named)

    return safe_open


def _index_of(device: object) -> object:
    """The index, where `device` names this device; anything else as it is."""
    from torch_spyre._index import existing_index

    if isinstance(device, (str, torch.device)) and str(device).partition(":")[0] == "spyre":
        return existing_index(device)
    return device
