"""A plan in `torch.distributed.algorithms.Join`, for ranks whose inputs are of uneven length.

A rank that has joined shadows the collectives of the others until all have. A plan's are those of `step`, and a step
of a rank with nothing left to train collects as any other, so all ranks go on collecting after the same step.

Apart from `_plan`, since PyTorch may have been built without `torch.distributed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.distributed.algorithms.join import Joinable, JoinHook

from torch_spyre.gc._agreement import device_for

if TYPE_CHECKING:
    from torch_spyre.gc._plan import Plan


class JoinablePlan(Joinable):
    """What `Plan.joinable` returns. List it behind the model, in the order in which an iteration calls them."""

    def __init__(self, plan: Plan, group: distributed.ProcessGroup | None) -> None:
        super().__init__()
        self._plan = plan
        self._group = group

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What a rank does in each iteration that it has no input for."""
        return _Shadow(self._plan)

    @property
    def join_device(self) -> torch.device:
        """The device on which ranks tell each other whether they have joined."""
        return device_for(self._group)

    @property
    def join_process_group(self) -> Any:
        """The group of the plan, or the default one."""
        return self._group if self._group is not None else distributed.group.WORLD


class _Shadow(JoinHook):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def main_hook(self) -> None:
        self._plan.step()
