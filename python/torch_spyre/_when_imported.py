"""Running something when a module has been imported, which may be now, later, or never.

For packages that have to be told of this device, where importing them for it would make `import torch` slow.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def when_imported(name: str, act: Callable[[ModuleType], None]) -> None:
    """Calls `act` with the module `name`: at once if it has been imported, else when it has run.

    A module that is being imported already is left alone.
    """
    imported = sys.modules.get(name)
    if imported is None or getattr(getattr(imported, "__spec__", None), "_initializing", False):
        sys.meta_path.insert(0, _Importer(name, act))
    else:
        act(imported)


class _Importer(importlib.abc.MetaPathFinder):
    """Finds the module as the others do."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    _act_when_run(spec.loader, self._act)
                return spec
        return None


def _act_when_run(loader: Any, act: Callable[[ModuleType], None]) -> None:
    run = loader.exec_module

    def run_and_act(module: ModuleType) -> None:
        run(module)
        act(module)

    loader.exec_module = run_and_act
