"""A feature extractor that leaks what it collects, and the warning about it when Python collects by itself.

TORCH_SPYRE_ALLOC_CONF=device_memory:64MiB python examples/cycles/warning.py
"""

from __future__ import annotations

import os
import textwrap
import warnings

os.environ.setdefault("TORCH_SPYRE_ALLOC_CONF", "device_memory:64MiB")

import torch
from torch import nn


class FeatureExtractor:
    """Keeps what the layers of a model return."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.features: list[torch.Tensor] = []
        for layer in model.children():
            layer.register_forward_hook(self.keep)

    def keep(self, layer: nn.Module, inputs: object, output: torch.Tensor) -> None:
        self.features.append(output.detach())


def show(message: Warning | str, category: type[Warning], filename: str, line: int, *_: object) -> None:
    print(textwrap.fill(f"{category.__name__}: {message}", 110))


warnings.showwarning = show
torch.spyre.memory.record_cycles(warn_bytes=4 << 20)
for _ in range(2):
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to("spyre")
    extractor = FeatureExtractor(model)
    with torch.no_grad():
        model(torch.rand(1024, 256, device="spyre"))
    del model, extractor
    objects = [[] for _ in range(100_000)]  # Work that makes Python's collector run.
    del objects
