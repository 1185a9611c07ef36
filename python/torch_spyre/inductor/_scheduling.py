"""Which kernels are generated for a graph on spyre, and how they are called: those of the CPU, the same way.

Inductor decides by the current device of the graph, so that is the CPU while a kernel is generated or called.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.virtualized import V

_CPU = torch.device("cpu")


def on_cpu() -> AbstractContextManager[None]:
    """The graph's current device is the CPU meanwhile."""
    scope: AbstractContextManager[None] = V.graph.set_current_device(_CPU)
    return scope


class SpyreScheduling(CppScheduling):
    """The CPU's scheduling."""

    def codegen_node(self, node: Any) -> None:
        """Generates the kernel of fused nodes."""
        with on_cpu():
            super().codegen_node(node)

    def codegen_template(self, *arguments: Any, **options: Any) -> Any:
        """Generates the kernel of a template, which may be a matrix product."""
        with on_cpu():
            return super().codegen_template(*arguments, **options)

    def flush(self) -> None:
        """Writes the kernels generated so far, and their calls."""
        with on_cpu():
            super().flush()
