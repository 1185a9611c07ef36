"""What Inductor runs on each graph with spyre tensors, before it generates code: it says what cannot have effect.

Its identity is part of the key under which Inductor caches generated code, so that code of another version of this
package is not used.
"""

from __future__ import annotations

import hashlib
import warnings
from functools import cache
from pathlib import Path

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphModulePass


class SpyreGraphPass(CustomGraphModulePass):
    """Changes no graph."""

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        """Warns of options that ask for what the device does not have, and raises for one that would go wrong."""
        if config.combo_kernels:
            raise NotImplementedError(
                "combo kernels are not available on spyre: kernels are C++, which Inductor does not combine. "
                "Leave torch._inductor.config.combo_kernels False"
            )
        if config.triton.cudagraphs:
            _warn_once(
                "CUDA graphs, which mode='reduce-overhead' and mode='max-autotune' ask for, do not exist on spyre; "
                "compiling without them. mode='max-autotune-no-cudagraphs' does not ask for them"
            )
        if config.max_autotune or config.max_autotune_gemm:
            _warn_once(
                "max-autotune has nothing to choose from on spyre: matrix products and convolutions are calls of "
                "PyTorch's CPU kernels; compiling as in mode='default'"
            )

    def uuid(self) -> str:
        """A digest of the code generation's sources."""
        return _digest()


@cache
def _warn_once(message: str) -> None:
    warnings.warn(f"torch.compile: {message}", stacklevel=2)


@cache
def _digest() -> str:
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()
