"""How the ranks of `torch.distributed` come to collect after the same step.

After a step each rank launches an all-reduce of one number, the generation it asks for, and goes on. After the next
step, when the all-reduce has long ended, each reads the same maximum, and acts on it. A rank that leaves takes part
once more, with LEFT, so that the others learn it instead of waiting for it.

Every rank makes the same calls in the same order, and reads a result before it launches the next all-reduce: at most
one is in flight. Waiting for it ends with the timeout of the group at the latest.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import distributed

from torch_spyre.gc._limits import Generation
from torch_spyre.gc._statistics import PlanStatistics

_LEFT = max(Generation) + 1

Wanted = Callable[[], Generation]


class Alone:
    """One process: what it wants is done at once."""

    def exchange(self, _step: int, wanted: Wanted) -> Generation:
        """What is to be collected now."""
        return wanted()

    def leave(self, *, failed: bool) -> None:
        """Nobody waits for this process."""


class Ranks:
    """One rank of a group that agrees after every `every`-th step."""

    def __init__(self, group: distributed.ProcessGroup | None, every: int, statistics: PlanStatistics) -> None:
        self.group = group
        self.every = every
        self.statistics = statistics
        self.device = device_for(group)
        # Made once, so that what the device has in use does not depend on whether an all-reduce is in flight.
        self.tensor = torch.zeros(1, dtype=torch.int32, device=self.device)
        self.pending: tuple[torch.Tensor, distributed.Work, int] | None = None
        self.broken = False

    def exchange(self, step: int, wanted: Wanted) -> Generation:
        """What the ranks have agreed to collect now; asks them for what is wanted here next.

        Raises RuntimeError if the all-reduce has failed or a rank has left.
        """
        due = self._result()
        if step % self.every == 0:
            # What is about to be collected need not be asked for again.
            self._launch(step, wanted() if due is Generation.NONE else Generation.NONE)
        return due

    def leave(self, *, failed: bool) -> None:
        """Tells the others, unless they know. If `failed`, this rank is on its way out with an exception, and waits for
        nobody.
        """
        if self.broken:
            return
        try:
            if not failed:
                self._result()
            self._launch(0, _LEFT)
            if not failed:
                self._value()
        except RuntimeError:
            if not failed:
                raise

    def _launch(self, step: int, value: int) -> None:
        # A rank that leaves in a hurry may have one in flight.
        tensor = self.tensor if self.pending is None else torch.zeros_like(self.tensor)
        try:
            tensor.fill_(value)
            work = distributed.all_reduce(tensor, distributed.ReduceOp.MAX, group=self.group, async_op=True)
        except RuntimeError as error:
            raise self._failure(step, error) from error
        assert work is not None  # This process is in the group: _plan.py has looked.
        self.statistics.agreements += 1
        self.pending = tensor, work, step

    def _result(self) -> Generation:
        value = self._value()
        if value == _LEFT:
            self.broken = True
            raise RuntimeError(
                "a rank has left the collection plan that this rank is still in: it made fewer steps, or failed. Every "
                "rank must make the same number of steps; for inputs of uneven length see "
                "torch.distributed.algorithms.Join and Plan.joinable"
            )
        return Generation(value)

    def _value(self) -> int:
        if self.pending is None:
            return Generation.NONE
        tensor, work, step = self.pending
        self.pending = None
        started = time.perf_counter_ns()
        try:
            work.wait()
            return int(tensor.item())
        except RuntimeError as error:
            raise self._failure(step, error) from error
        finally:
            self.statistics.agreement_wait_ns += time.perf_counter_ns() - started

    def _failure(self, step: int, error: RuntimeError) -> RuntimeError:
        self.broken = True
        when = f"after step {step}" if step else "at the end of the plan"
        return RuntimeError(
            f"the ranks could not agree {when} on what to collect: {error}. A rank has ended, or has not made this "
            "step within the timeout of the process group"
        )


def device_for(group: distributed.ProcessGroup | None) -> torch.device:
    """Where the number is: on the CPU if the group has a backend for it."""
    # In the form "cpu:gloo,spyre:spyre".
    types = [part.partition(":")[0] for part in distributed.get_backend_config(group).split(",")]
    return torch.device("cpu" if "cpu" in types else types[0])
