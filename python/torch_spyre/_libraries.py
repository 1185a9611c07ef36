"""Which files are not the program's own. A place in the program, and who holds memory, are named by what is."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import torch

from torch_spyre._lifecycle import core

Frame: TypeAlias = tuple[str, int, str]
"""File, line and function."""

PYTORCH = (
    *(os.path.join(os.path.dirname(file or ""), "") for file in (torch.__file__, __file__)),
    "<eval_with_key>",  # What torch.fx generates.
)
"""What the files of PyTorch and of this package begin with."""

INSTALLED = (
    *PYTORCH,
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(torch.__file__).parents[1]),
    "<frozen ",
)
"""What the files of Python and of all installed packages begin with. Programs may come from `<stdin>` or `<string>`."""


def install() -> None:
    """Tells the extension, which names places too, and spells what UTF-8 cannot say as stacks do."""
    installed, pytorch = (
        [prefix.encode(errors="backslashreplace").decode() for prefix in prefixes] for prefixes in (INSTALLED, PYTORCH)
    )
    core().set_libraries(installed, pytorch)


def own_frame(frames: Sequence[Frame]) -> Frame:
    """The frame that stands for a stack, innermost frame first: the innermost one of the program itself, or else the
    innermost one that is not PyTorch's, or else the innermost one.
    """
    return frames[core().own_frame([filename for filename, _, _ in frames])]


def is_installed(filename: str) -> bool:
    """Whether a file is Python's or an installed package's."""
    return filename.startswith(INSTALLED)
