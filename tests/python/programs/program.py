"""What the programs share: a training loop that makes garbage as programs do, and a report of how it went.

Each program is a script. It runs on the CPU and then on spyre, with the same seeds and with the collector off, and
prints one JSON object.
"""

from __future__ import annotations

import copy
import gc
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Step:
    """One training step, as trainers keep it for their callbacks: it knows itself, so only a collection frees it."""

    def __init__(self, features: list[Tensor], outputs: Any) -> None:
        self.features = features
        self.outputs = outputs
        self.current = self


class Features:
    """Collects what the layers of a model return, as feature extractors do with hooks."""

    def __init__(self, model: nn.Module) -> None:
        self._collected: list[Tensor] = []
        layers = [module for module in model.modules() if next(module.children(), None) is None]
        self._hooks = [layer.register_forward_hook(self._collect) for layer in layers]

    def _collect(self, module: nn.Module, arguments: object, output: object) -> None:
        if isinstance(output, Tensor):
            self._collected.append(output.detach())

    def take(self) -> list[Tensor]:
        """What was collected since the last call."""
        taken, self._collected = self._collected, []
        return taken

    def end(self) -> None:
        """Collects no more."""
        for hook in self._hooks:
            hook.remove()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, forward: Callable[[int], Any]) -> list[float]:
    """Losses of so many steps; `forward` returns an object with `loss` for the number of a step."""
    losses = []
    features = Features(model)
    model.train()
    for number in range(steps):
        step = Step([], forward(number))
        step.features = features.take()
        optimizer.zero_grad()
        step.outputs.loss.backward()
        optimizer.step()
        losses.append(step.outputs.loss.item())
    features.end()
    return losses


def report(model: nn.Module, run: Callable[[nn.Module, str], dict[str, Any]]) -> None:
    """Runs a program on both devices, on copies of one model, and prints what came of it."""
    gc.disable()
    results = {}
    for device in ("cpu", "spyre"):
        torch.manual_seed(0)
        placed = copy.deepcopy(model).to(device)
        results[device] = run(placed, device)
        weights = torch.cat([parameter.detach().cpu().flatten() for parameter in placed.parameters()])
        results[device]["weights"] = [weights.double().sum().item(), weights.double().norm().item()]
    pressure = torch.spyre.memory.pressure_stats()
    print(json.dumps({**results, "pressure": {name: pressure[name] for name in ("events", "rescued", "failed")}}))
