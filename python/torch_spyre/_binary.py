"""Checks that the extension module fits the installed PyTorch, before it is loaded.

The module is bound to one minor version of torch, and its static initialisers run inside torch's dispatcher as soon as
it is loaded. So what it was built for is read from the file: the Rust side embeds `TORCH_SPYRE_BUILT_FOR_TORCH=2.15;`.
"""

from __future__ import annotations

import mmap
import re
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

# It also offers to load files of the stable ABI, to which its objects do not keep.
_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

_MARKER = re.compile(rb"TORCH_SPYRE_BUILT_FOR_TORCH=(\d+\.\d+);")

# From sources: what an index has under the project's name need not be this project.
_REBUILD = (
    "in a checkout of its sources: make setup, for the .venv there; for another environment: "
    "pip install maturin && pip install --no-build-isolation --force-reinstall --no-deps ."
)


def check(torch_version: str) -> None:
    """Raises ImportError unless the extension module exists and was built for this minor version of torch."""
    path = _find()
    built_for = _built_for(path)
    installed = ".".join(torch_version.split(".")[:2])
    if built_for != installed:
        raise ImportError(
            f"torch_spyre was built for PyTorch {built_for}, but PyTorch {torch_version} is installed. "
            f"Rebuild it against the installed one, {_REBUILD}"
        )


def _find() -> Path:
    folder = Path(__file__).parent
    for suffix in EXTENSION_SUFFIXES:
        path = folder / f"_C{suffix}"
        if path.exists() and not (_FREE_THREADED and ".abi3" in suffix):
            return path
    raise ImportError(f"torch_spyre in {folder} has no extension module for this Python. Build it, {_REBUILD}")


def _built_for(path: Path) -> str:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = _MARKER.search(content)
        if found is None:
            raise ImportError(f"{path} does not say which PyTorch it was built for. Rebuild it, {_REBUILD}")
        return found.group(1).decode()
