"""Cross-validation that leaks each fold, as training code does: a trainer holds its callbacks, and each callback its
trainer. Only Python's collector frees such a pair, with the model, its gradients and the optimizer's state.

    python examples/cycles/folds.py
"""

from __future__ import annotations

import gc
import os

os.environ.setdefault("TORCH_SPYRE_ALLOC_CONF", "device_memory:64MiB,cycles:true")

import torch
from torch import nn

FOLDS = 6


class Trainer:
    """Trains a model of its own."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).to("spyre")
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.callbacks = [LossHistory(self)]

    def step(self, inputs: torch.Tensor) -> None:
        loss = (self.model(inputs) - inputs).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        for callback in self.callbacks:
            callback.after(loss)


class LossHistory:
    """Keeps the losses of a trainer, and asks it what it needs to know."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer  # The cycle. `weakref.proxy(trainer)` would not make one.
        self.losses: list[float] = []

    def after(self, loss: torch.Tensor) -> None:
        self.losses.append(loss.item())


torch.spyre.memory._record_memory_history(max_entries=1000, stacks="python")  # To know where it was allocated.
gc.disable()  # As training loops do, for speed.
torch.manual_seed(0)
for _ in range(FOLDS):
    trainer = Trainer()
    for _ in range(3):
        trainer.step(torch.rand(64, 512, device="spyre"))

print(torch.spyre.memory.cycle_report())
