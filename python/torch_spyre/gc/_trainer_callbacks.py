"""What callbacks of trainers share: a plan that the caller has entered, or that training enters and leaves."""

from __future__ import annotations

from torch_spyre.gc._plan import Plan, planned


class PlanOfTrainer:
    """A mixin, in front of a trainer's own class of callbacks."""

    def __init__(self, plan: Plan | None = None) -> None:
        """Takes a plan; None is one with the defaults of `planned`. Raises TypeError for anything else."""
        super().__init__()
        if plan is not None and not isinstance(plan, Plan):
            raise TypeError(f"plan={plan!r} is not a Plan; expected what torch_spyre.gc.planned() returned, or None")
        self.plan = planned() if plan is None else plan
        self._entered = False

    def close(self) -> None:
        """Leaves the plan as after a failure, if training has entered it and not left it. Waits for no rank."""
        if self._entered:
            self._entered = False
            self.plan.abandon()

    def _begin(self) -> None:
        self.close()
        if not self.plan.active:
            self.plan.__enter__()
            self._entered = True

    def _end(self) -> None:
        if self._entered:
            self._entered = False
            self.plan.__exit__(None, None, None)
