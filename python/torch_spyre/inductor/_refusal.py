"""What is registered where Inductor is not one that this package was written for: it raises the reason."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch._inductor.custom_graph_pass import CustomGraphModulePass


class Refusal(CustomGraphModulePass):
    """Runs on each graph with spyre tensors before code is generated, and raises NotImplementedError.

    Args:
        problem: what Inductor lacks.
    """

    def __init__(self, problem: Exception) -> None:
        self._problem = problem

    def __call__(self, gm: torch.fx.GraphModule) -> NoReturn:
        """Says what to do."""
        raise NotImplementedError(
            f"torch.compile on spyre was written for the Inductor of PyTorch 2.12 to 2.15, and that of "
            f"{torch.__version__} differs: {self._problem}. "
            f'Use torch.compile(backend="aot_eager"), or a torch_spyre made for this PyTorch'
        )

    def uuid(self) -> None:
        """Nothing: no code is generated, so none is cached."""
        return
