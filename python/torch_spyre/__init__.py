"""The PyTorch device `spyre`.

Importing this package makes the device available, as `import torch` alone also does. It raises where the device cannot
be used: ImportError without a fitting PyTorch or in a sub-interpreter, ValueError for an invalid configuration.

The API is `torch.spyre`, after the model of `torch.cuda`, and `torch_spyre.flex`, the allocator by itself.
"""

from __future__ import annotations

from pathlib import Path as _Path

from torch_spyre import _main_interpreter

_main_interpreter.check()

try:
    import torch as _torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "torch_spyre needs PyTorch, which is not installed. Install it with: pip install 'torch>=2.12,<2.16'"
    ) from None

from torch_spyre import _lifecycle  # noqa: E402

_lifecycle.start()

from torch_spyre import flex  # noqa: E402

__all__ = ["flex", "include_dir"]

del _torch


def include_dir() -> str:
    """The folder with `flex.h` and `flex.hpp`, the C ABI that the extension exports: for the `-I` of a compiler, or
    `include_dirs` of `torch.utils.cpp_extension`.
    """
    return str(_Path(__file__).parent / "include")
