"""A training loop whose steps leave cycles, in a collection plan: what is collected after which step."""

import os

os.environ["TORCH_SPYRE_ALLOC_CONF"] = "device_memory:64MiB"

import torch
from torch import nn

import torch_spyre.gc


class StepState:
    """What a step keeps for its callbacks. It knows itself, so it dies only when Python collects."""

    def __init__(self, activations: torch.Tensor) -> None:
        self.state = self
        self.activations = activations


model = nn.Linear(1024, 256).to("spyre")
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.ones(1024, 1024, device="spyre")


def train_step() -> None:
    activations = model(batch)
    activations.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    StepState(activations.detach())


with torch_spyre.gc.planned(warmup_steps=2) as plan:
    for _ in range(12):
        train_step()
        plan.step()

for each in plan.statistics.recent:
    if each.objects:
        print(f"step {each.step}: {each.generation.name.lower()}, {each.reclaimed_bytes >> 20} MiB freed")
print(f"{plan.statistics.emergencies} times the device was full")
