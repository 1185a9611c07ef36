"""Refuses sub-interpreters, before anything is imported that would hang or crash in one.

Neither PyTorch nor this package can be used there: both keep Python objects in variables of the process. Importing
PyTorch in a sub-interpreter fails or hangs for ever, depending on the version, so this comes first.
"""

from __future__ import annotations

import importlib
from types import ModuleType


def check() -> None:
    """Raises ImportError in a sub-interpreter."""
    interpreters = _interpreters()
    # An interpreter without that module cannot make others from Python. The extension module looks again.
    if interpreters is not None and interpreters.get_current() != interpreters.get_main():
        raise ImportError(
            "torch_spyre cannot be used in a sub-interpreter, because PyTorch cannot; "
            "import it in the main interpreter of the process"
        )


def _interpreters() -> ModuleType | None:
    for name in ("_interpreters", "_xxsubinterpreters"):  # From CPython 3.13 on, and before.
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None
