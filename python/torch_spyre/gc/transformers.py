"""A callback for `transformers.Trainer`: each optimizer step is a step of a collection plan.

    from torch_spyre.gc.transformers import PlannedCollection

    with planned() as plan:
        Trainer(..., callbacks=[PlannedCollection(plan)]).train()

`Trainer` does not tell its callbacks when training fails, so enter the plan around it, as above. A plan that is not
active when training begins is entered then and left when training ends, but stays active if training fails: until
`PlannedCollection.close`, or until the next training with this callback begins.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from torch_spyre.gc._trainer_callbacks import PlanOfTrainer

__all__ = ["PlannedCollection"]


class PlannedCollection(PlanOfTrainer, TrainerCallback):
    """Makes the steps of `plan`, or of one with the defaults of `planned`."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Enters the plan, unless it is active."""
        self._begin()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Makes a step."""
        self.plan.step()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leaves the plan, if it was entered here."""
        self._end()
