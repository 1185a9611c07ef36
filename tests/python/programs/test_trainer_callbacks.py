"""Collection plans in trainers: the callbacks by their hooks, in the order in which the trainers call them."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pressure_tools import MIB, make_garbage
from torch_spyre.gc import planned
from torch_spyre.gc._lightning_hooks import LightningHooks


@pytest.fixture(autouse=True)
def collector_as_found() -> Iterator[None]:
    gc.collect()
    assert gc.isenabled()
    yield
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def plan() -> Any:
    return planned(warmup_steps=2, young_bytes=2 * MIB, time_share=1)


BATCHES = 5


def lightning_fit(callback: Any, fail_at: int | None = None) -> None:
    """What a Lightning trainer calls of a callback, in its order, for an epoch."""
    trainer, module = SimpleNamespace(), nn.Linear(1, 1)
    try:
        callback.on_train_start(trainer, module)
        for batch in range(BATCHES):
            if batch == fail_at:
                raise ZeroDivisionError
            make_garbage(MIB)
            callback.on_train_batch_end(trainer, module, outputs=None, batch=None, batch_idx=batch)
            assert not gc.isenabled()
        callback.on_train_end(trainer, module)
    except ZeroDivisionError as error:
        callback.on_exception(trainer, module, error)


def test_lightning_hooks() -> None:
    callback = LightningHooks(plan())
    lightning_fit(callback)
    assert not callback.plan.active
    assert callback.plan.statistics.steps == BATCHES
    assert {each.step for each in callback.plan.statistics.recent} == {2, 4}
    lightning_fit(callback, fail_at=3)
    assert not callback.plan.active
    assert callback.plan.statistics.steps == 3


def test_lightning_hooks_in_a_plan_of_the_caller() -> None:
    with plan() as mine:
        lightning_fit(LightningHooks(mine))
        lightning_fit(LightningHooks(mine), fail_at=1)
        assert mine.active
        assert mine.statistics.steps == BATCHES + 1


def test_callbacks_travel_to_other_processes() -> None:
    copy = pickle.loads(pickle.dumps(LightningHooks(plan())))
    lightning_fit(copy)
    assert copy.plan.statistics.steps == BATCHES


def test_a_callback_takes_nothing_but_a_plan() -> None:
    with pytest.raises(TypeError, match=r"plan=7 is not a Plan; expected what torch_spyre.gc.planned\(\) returned"):
        LightningHooks(7)  # type: ignore[arg-type]
    assert LightningHooks().plan.statistics.steps == 0


@pytest.mark.filterwarnings("ignore")
def test_lightning() -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="not among the packages of the tests")
    from torch_spyre.gc.lightning import PlannedCollection

    class Module(lightning.LightningModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)
            self.fail_at = -1

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            if index == self.fail_at:
                raise ZeroDivisionError
            make_garbage(MIB)
            loss: torch.Tensor = self.layer(batch).sum()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_epochs": 1}
    callback = PlannedCollection(plan())
    assert isinstance(callback, lightning.Callback)
    module, batches = Module(), torch.utils.data.DataLoader(torch.ones(BATCHES, 2))  # type: ignore[arg-type, var-annotated]
    lightning.Trainer(**quiet, accelerator="cpu", callbacks=[callback]).fit(module, batches)
    assert {each.step for each in callback.plan.statistics.recent} == {2, 4}
    module.fail_at = 3
    with pytest.raises(ZeroDivisionError):
        lightning.Trainer(**quiet, accelerator="cpu", callbacks=[callback]).fit(module, batches)
    assert callback.plan.statistics.steps == 3
    assert not callback.plan.active


class TransformersTraining:
    """What `transformers.Trainer` calls of its callbacks, through its own handler, with two batches to a step."""

    def __init__(self, callback: Any) -> None:
        from transformers import TrainerControl, TrainerState
        from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

        self.handler = CallbackHandler([DefaultFlowCallback, callback], None, None, None, None)
        self.state, self.control = TrainerState(), TrainerControl()
        self.arguments: Any = SimpleNamespace(
            logging_first_step=False, logging_strategy="no", eval_strategy="no", save_strategy="no"
        )

    def call(self, hook: str) -> None:
        self.control = getattr(self.handler, hook)(self.arguments, self.state, self.control)

    def train(self, fail_at: int | None = None) -> None:
        self.state.max_steps = BATCHES
        self.call("on_train_begin")
        self.call("on_epoch_begin")
        for step in range(1, BATCHES + 1):
            self.call("on_step_begin")
            self.call("on_substep_end")
            if step == fail_at:
                raise ZeroDivisionError
            make_garbage(MIB)
            self.call("on_pre_optimizer_step")
            self.call("on_optimizer_step")
            self.state.global_step = step
            self.call("on_step_end")
            assert not gc.isenabled()
        self.call("on_epoch_end")
        self.call("on_train_end")


@pytest.fixture
def transformers_callback() -> Any:
    pytest.importorskip("transformers", reason="not among this environment's packages")
    from torch_spyre.gc.transformers import PlannedCollection

    return PlannedCollection


def test_transformers(transformers_callback: Any) -> None:
    callback = transformers_callback(plan())
    for _ in range(2):
        TransformersTraining(callback).train()
        assert not callback.plan.active
        assert callback.plan.statistics.steps == BATCHES
        assert {each.step for each in callback.plan.statistics.recent} == {2, 4}


def test_transformers_in_a_plan_of_the_caller(transformers_callback: Any) -> None:
    def train() -> None:
        with mine:
            TransformersTraining(transformers_callback(mine)).train(fail_at=4)

    mine = plan()
    with pytest.raises(ZeroDivisionError):
        train()
    assert not mine.active
    assert mine.statistics.steps == 3


def test_a_trainer_that_fails_leaves_the_plan_to_close_or_to_the_next_training(transformers_callback: Any) -> None:
    callback = transformers_callback(plan())
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            TransformersTraining(callback).train(fail_at=4)
        assert callback.plan.active
    callback.close()
    assert not callback.plan.active
