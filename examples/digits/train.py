"""Train a small network on handwritten digits, on the device `spyre`.

This is an ordinary PyTorch program. Two of its habits are common, and together they fill a device with dead
tensors: it looks into the network through forward hooks that refer back to their owner, so that every step
leaves a reference cycle behind; and it turns Python's cyclic garbage collector off, for speed.

    .venv/bin/python examples/digits/train.py                  train; the allocator collects when it must
    .venv/bin/python examples/digits/train.py --gc off         train; the allocator may not collect
    .venv/bin/python examples/digits/train.py --device cpu     train on the CPU, to compare
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

EPOCHS = 14
BATCH = 64
SEED = 7


class FeatureExtractor:
    """Keep what each activation layer puts out during one forward pass."""

    def __init__(self, model: nn.Module) -> None:
        self.features: list[torch.Tensor] = []

        def keep(layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            self.features.append(output)

        # `keep` refers to `self` and `self` refers to `keep`. Removing the hooks does not break this cycle:
        # when the step is over, only Python's cyclic collector can free the extractor, and with it the
        # tensors in `features`.
        self.keep = keep
        layers = [layer for layer in model.modules() if isinstance(layer, nn.ReLU)]
        self.handles = [layer.register_forward_hook(keep) for layer in layers]

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> float:
    extractor = FeatureExtractor(model)
    logits = model(images)
    extractor.remove()

    # A small penalty on large activations: the reason to look at the features.
    penalty = torch.stack([feature.square().mean() for feature in extractor.features]).sum()
    loss = functional.cross_entropy(logits, labels) + 0.001 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


class Recorder:
    """What happened on the device, step by step, for the chart."""

    def __init__(self, device: str) -> None:
        self.on_spyre = device == "spyre"
        self.used_bytes: list[int] = []
        self.rescued: list[int] = []

    def step(self) -> None:
        if self.on_spyre:
            self.used_bytes.append(torch.spyre.memory_allocated())
            self.rescued.append(torch.spyre.memory.pressure_stats()["rescued"])

    def summary(self) -> dict[str, Any]:
        if not self.on_spyre:
            return {}
        return {
            "capacity_bytes": torch.spyre.mem_get_info()[1],
            "used_bytes": self.used_bytes,
            "rescued": self.rescued,
            "pressure": torch.spyre.memory.pressure_stats(),
        }


def progress(steps: Iterable[int], total: int) -> Iterator[int]:
    """Show how far the training is: a bar on a terminal, a line now and then elsewhere."""
    if sys.stdout.isatty():
        from rich.progress import track

        yield from track(steps, "training", total=total)
        return
    for step in steps:
        yield step
        if (step + 1) % 50 == 0 or step + 1 == total:
            print(f"step {step + 1} of {total}", flush=True)


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).float().mean())


def train(device: str) -> dict[str, Any]:
    torch.manual_seed(SEED)
    digits = load_digits()
    split = train_test_split(
        digits.images / 16, digits.target, test_size=0.25, random_state=SEED, stratify=digits.target
    )
    train_images, test_images = (torch.tensor(part, dtype=torch.float32).unsqueeze(1).to(device) for part in split[:2])
    train_labels, test_labels = (torch.tensor(part).to(device) for part in split[2:])

    model = network().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    batches = [batch for _ in range(EPOCHS) for batch in torch.randperm(len(train_labels)).split(BATCH)]
    recorder = Recorder(device)
    result: dict[str, Any] = {"device": device, "steps": len(batches)}
    started = time.perf_counter()
    try:
        for step in progress(range(len(batches)), len(batches)):
            result["step"] = step + 1
            batch = batches[step].to(device)
            train_step(model, optimizer, train_images[batch], train_labels[batch])
            recorder.step()
        result["accuracy"] = accuracy(model, test_images, test_labels)
        recorder.step()
    except torch.OutOfMemoryError as error:
        result["out_of_memory"] = str(error)
    result["seconds"] = time.perf_counter() - started
    return result | recorder.summary()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--device", default="spyre", help="where to train (default: spyre)")
    parser.add_argument("--gc", choices=["always", "off"], default="always", help="what the allocator may do (spyre)")
    parser.add_argument("--record", type=Path, help="write what happened to this JSON file")
    options = parser.parse_args()

    gc.disable()
    if options.device == "spyre":
        torch.spyre.memory.set_pressure_policy(gc=options.gc)
    result = train(options.device)

    if "out_of_memory" in result:
        print(f"Stopped at step {result['step']} of {result['steps']}:\n{result['out_of_memory']}")
    else:
        print(
            f"Trained {result['steps']} steps in {result['seconds']:.1f} s; "
            f"{result['accuracy']:.1%} of the test images are recognised."
        )
    if options.record:
        options.record.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
