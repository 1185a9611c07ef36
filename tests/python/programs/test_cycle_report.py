"""The cycle report names what leaks in programs as people write them around `transformers`."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="the programs train its models; it is not there for CPython 3.13t")

os.environ["HF_HUB_OFFLINE"] = "1"

from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback

from torch_spyre._cycles import dead_bytes, shown

memory: Any = torch.spyre.memory

WORDS = 256


@pytest.fixture(autouse=True)
def recorded() -> Iterator[None]:
    gc.collect()
    gc.disable()
    memory.record_cycles()
    memory.reset_cycle_report()
    memory._record_memory_history(max_entries=100, stacks="python")
    yield
    memory._record_memory_history(enabled=None)
    memory.record_cycles(False)
    gc.enable()
    gc.collect()


def make_model() -> Any:
    torch.manual_seed(0)
    model: Any = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=64, n_embd=96, n_layer=2, n_head=4))
    return model.to("spyre")


def words() -> torch.Tensor:
    return torch.randint(0, WORDS, (4, 64)).to("spyre")


class Trainer:
    """One of cross-validation's folds: a model, its optimizer, its callbacks."""

    def __init__(self) -> None:
        self.model = make_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.callbacks = [LossHistory(self)]

    def step(self) -> None:
        batch = words()
        outputs = self.model(input_ids=batch, labels=batch)
        outputs.loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        for callback in self.callbacks:
            callback.on_log(None, None, None, outputs=outputs)


class LossHistory(TrainerCallback):
    """Keeps the last outputs, and its trainer."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.logits = kwargs["outputs"].logits.detach()


def train_folds() -> None:
    for _ in range(12):
        trainer = Trainer()
        trainer.step()
        trainer.step()


class FeatureExtractor:
    """Keeps what each block returns, through hooks that are closures."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.features: dict[str, torch.Tensor] = {}
        for name, block in model.transformer.h.named_children():
            block.register_forward_hook(self.hook_for(name))

    def hook_for(self, name: str) -> Callable[..., None]:
        def keep(module: nn.Module, inputs: object, output: Any) -> None:
            self.features[name] = output[0].detach()

        return keep


def extract() -> None:
    for _ in range(60):
        extractor = FeatureExtractor(make_model())
        with torch.no_grad():
            extractor.model(input_ids=words())


class Attempt:
    """Remembers why it failed, as retrying code does."""

    error: ValueError

    def run(self, model: Any) -> None:
        hidden = model.transformer(words()).last_hidden_state
        try:
            raise ValueError(f"no target for {tuple(hidden.shape)}")
        except ValueError as error:
            self.error = error


def retry() -> None:
    model = make_model()
    for _ in range(60):
        Attempt().run(model)


def press() -> None:
    """Makes what is left of the garbage go."""
    with contextlib.suppress(torch.OutOfMemoryError):  # Something else may be on the device.
        torch.empty(64 << 20, dtype=torch.uint8, device="spyre")


@pytest.mark.parametrize(
    ("leak", "name", "path", "culprit", "allocates"),
    [
        (
            train_folds,
            "Trainer",
            "Trainer.callbacks[0] → LossHistory.trainer → Trainer",
            Trainer.__init__,
            Trainer.step,
        ),
        (
            extract,
            "FeatureExtractor",
            "FeatureExtractor.model → GPT2LMHeadModel.transformer → GPT2Model.h → ModuleList.0 → GPT2Block"
            "._forward_hooks[N] → function keep.self → FeatureExtractor",
            FeatureExtractor.__init__,
            make_model,
        ),
        (
            retry,
            "Attempt",
            "Attempt.error → ValueError.__traceback__.tb_frame.self → Attempt",
            Attempt.run,
            Attempt.run,
        ),
    ],
)
def test_it_names_the_type_and_the_way_around(
    leak: Callable[[], None], name: str, path: str, culprit: Callable[..., None], allocates: Callable[..., object]
) -> None:
    leak()
    press()
    report = memory.cycle_report()
    assert report.recorded_bytes == report.freed_bytes > 0
    holders = {holder.name.rpartition(".")[2]: holder for holder in report.holders}
    assert name in holders, str(report)
    holder = holders[name]
    assert re.sub(r"_hooks\[\d+\]", "_hooks[N]", holder.path) == path
    assert (holder.filename, holder.line) == (__file__, culprit.__code__.co_firstlineno)
    assert holder.freed_bytes > report.freed_bytes / 2, str(report)
    assert holder.path in str(report)
    place = next(frame for frame in holder.frames if frame[0] == __file__)
    source, first = inspect.getsourcelines(allocates)
    assert first <= place[1] < first + len(source), holder.frames
    assert place[2] == allocates.__name__
    assert f"allocated at {shown(place[0], place[1])} in {place[2]}" in str(report)
    assert report.sites[0].freed_bytes > 0


def test_dead_bytes_are_those_that_a_collection_frees() -> None:
    found = dead_bytes()
    assert found is not None
    before = found.nbytes
    for _ in range(2):
        Trainer().step()
    found = dead_bytes()
    assert found is not None
    allocated = memory.memory_allocated()
    gc.collect()
    freed = allocated - memory.memory_allocated()
    assert freed * 0.9 <= found.nbytes - before <= freed
