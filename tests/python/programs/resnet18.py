"""Trains torchvision's ResNet-18 on random images."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torchvision.models import resnet18

from programs.program import report, train

STEPS = 8


def run(model: nn.Module, device: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(STEPS, 8, 3, 48, 48, generator=generator)
    labels = torch.randint(0, 10, (STEPS, 8), generator=generator)

    def forward(number: int) -> SimpleNamespace:
        logits = model(images[number].to(device))
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits, labels[number].to(device)), logits=logits)

    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.01), STEPS, forward)
    model.eval()
    with torch.no_grad():
        logits = model(images[0].to(device)).cpu()
    return {"losses": losses, "logits": logits[0].tolist()}


torch.manual_seed(0)
report(resnet18(num_classes=10), run)
