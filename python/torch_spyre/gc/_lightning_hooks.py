"""What the callback for Lightning does, by the names and in the order of Lightning's hooks; needs no Lightning.

The order is `on_train_start`, `on_train_batch_end` after each batch, `on_train_end`; when training fails or is
interrupted, `on_exception` comes instead of the last. A trainer may be used again afterwards.
"""

from __future__ import annotations

from typing import Any

from torch_spyre.gc._trainer_callbacks import PlanOfTrainer


class LightningHooks(PlanOfTrainer):
    """See `torch_spyre.gc.lightning.PlannedCollection`."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Enters the plan, unless it is active."""
        self._begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Makes a step."""
        self.plan.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Leaves the plan, if it was entered here."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leaves the plan, if it was entered here, without waiting for other ranks."""
        self.close()
