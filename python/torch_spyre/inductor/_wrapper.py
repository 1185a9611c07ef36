"""The Python code around the kernels of a compiled function: it allocates buffers, calls kernels, frees buffers."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch._inductor.codegen.wrapper import (
    EnterCudaStreamContextLine,
    PythonWrapperCodegen,
    SubgraphPythonWrapperCodegen,
)


class _PythonWrapper(PythonWrapperCodegen):
    """Names the device of a buffer with its index: the current device need not be that of the function's tensors.

    What a program does in the context of a stream is called as anything else, since streams order nothing here.
    """

    def make_allocation(self, name: str, device: torch.device, *layout: Any, **options: Any) -> str:
        """The statement that allocates a buffer."""
        code: str = super().make_allocation(name, device, *layout, **options)
        if device.type != "spyre":
            return code
        indexed = code.replace("device='spyre'", f"device='{device}'")
        if indexed == code:
            raise AttributeError(f"Inductor allocates in a new way: {code}")
        return indexed

    def codegen_cuda_stream_enter(self, stream_idx: int) -> EnterCudaStreamContextLine:
        """No statement; Inductor would use variables for streams that it sets for GPUs only."""
        return EnterCudaStreamContextLine(stream_idx=stream_idx)

    def codegen_cuda_stream_exit(self) -> None:
        """No statement."""


class SpyreSubgraphWrapper(_PythonWrapper, SubgraphPythonWrapperCodegen):
    """The code of a branch or a loop body."""


class SpyreWrapper(_PythonWrapper):
    """The code of a whole graph."""

    @staticmethod
    def create(
        is_subgraph: bool, subgraph_name: str | None, parent_wrapper: Any, partition_signatures: Any = None
    ) -> PythonWrapperCodegen:
        """Makes the wrapper of a graph, or of a graph inside another."""
        if is_subgraph:
            return SpyreSubgraphWrapper(str(subgraph_name), parent_wrapper, partition_signatures)
        return SpyreWrapper()


class NoCppWrapper(PythonWrapperCodegen):
    """Stands for the C++ code around kernels, which is refused."""

    @staticmethod
    def create(*_: Any) -> NoReturn:
        """Says what to do."""
        raise NotImplementedError(
            "Inductor's C++ wrapper and AOTInductor are not available on spyre: a failed allocation in their code "
            "would not be a torch.OutOfMemoryError. Leave torch._inductor.config.cpp_wrapper False; "
            "instead of AOTInductor use torch.compile on the exported program's module"
        )


class NoFxWrapper(PythonWrapperCodegen):
    """Stands for a graph that calls the kernels, which is refused."""

    @staticmethod
    def create(*_: Any) -> NoReturn:
        """Says what to do."""
        raise NotImplementedError(
            "Inductor's FX wrapper is not available on spyre: it cannot call C++ kernels. "
            "Compile with torch._inductor.config.fx_wrapper = False, the default"
        )
