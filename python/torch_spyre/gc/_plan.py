"""A collection plan for users: its arguments, its entry and its exit. What it does in between is `_run`."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from torch import distributed

from torch_spyre._arguments import checked_bool, checked_int
from torch_spyre._index import DeviceLike, existing_index
from torch_spyre._lifecycle import core, lazy_init
from torch_spyre.gc._agreement import Alone, Ranks
from torch_spyre.gc._limits import Generation, Limits
from torch_spyre.gc._meter import Device
from torch_spyre.gc._run import Run
from torch_spyre.gc._statistics import PlanStatistics

if TYPE_CHECKING:
    from torch_spyre.gc._join import JoinablePlan


class Plan:
    """When Python's collector runs during training; see `planned`, which makes it.

    A plan can be entered again after it was left, and then counts anew.
    """

    def __init__(
        self,
        limits: Limits,
        device: DeviceLike,
        synchronize: bool,
        group: distributed.ProcessGroup | None,
        agree_every: int,
    ) -> None:
        """For `planned`, which checks the arguments."""
        self._limits = limits
        self._device = device
        self._synchronize = synchronize
        self._group = group
        self._agree_every = agree_every
        self._run: Run | None = None
        self._joinable: JoinablePlan | None = None
        self._statistics = PlanStatistics()

    @property
    def active(self) -> bool:
        """Whether the plan has been entered and not left."""
        return self._run is not None

    @property
    def statistics(self) -> PlanStatistics:
        """What was done since the plan was last entered; stays when it is left."""
        return self._statistics

    @property
    def synchronized(self) -> bool:
        """Whether this process agrees with others: `synchronize`, and a group of more than one rank."""
        if not self._synchronize or not distributed.is_available() or not distributed.is_initialized():
            return False
        return distributed.get_world_size(self._group) > 1

    def __enter__(self) -> Self:
        """Turns automatic collection off.

        Raises RuntimeError if this or another plan is active, or this process does not belong to the group.
        """
        if self._synchronize and self._group is not None and distributed.get_rank(self._group) < 0:
            raise RuntimeError("this process is not in the process group that the collection plan was given")
        statistics = PlanStatistics()
        agreement = Ranks(self._group, self._agree_every, statistics) if self.synchronized else Alone()
        self._run = Run(self._limits, _readings(self._device), agreement, statistics)
        self._statistics = statistics
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leaves the collector as it was. Raises RuntimeError if the other ranks cannot be told, when nothing else was
        raised.
        """
        run, self._run = self._run, None
        if run is not None:
            run.end(failed=kind is not None)

    def abandon(self) -> None:
        """Leaves the plan, if it is active, as an exception does: other ranks are told, and not waited for. For
        trainers that have no `with` block to leave.
        """
        run, self._run = self._run, None
        if run is not None:
            run.end(failed=True)

    def step(self, *, agreed: float | None = None) -> Generation:
        """Ends a step of the training loop: collects if that is due, and returns what was collected.

        Call it after each step, on the thread that entered the plan and, if the plan is synchronized, on all ranks.
        What the step made should be dropped by then: what is alive counts as live.

        Args:
            agreed: what to collect, from the program's own reduction (MAX) of `wanted()` over all ranks, in a plan with
                `synchronize=False`. It may have become a float.

        Raises:
            RuntimeError: the plan is not active, another thread entered it, a rank has left, or the ranks could not
                agree.
            ValueError: `agreed` is no generation, or the plan agrees by itself.
        """
        if agreed is None:
            return self._active_run().step(None)
        if self.synchronized:
            raise ValueError("step(agreed=...) is for plans with synchronize=False; this one agrees by itself")
        if agreed not in tuple(Generation):
            raise ValueError(f"agreed={agreed!r} is no generation; expected the maximum of what wanted() returned")
        return self._active_run().step(Generation(int(agreed)))

    def wanted(self) -> Generation:
        """What this process would collect now, for a reduction of the program's own; see `step`."""
        return self._active_run().wanted()

    @property
    def joinable(self) -> JoinablePlan:
        """The plan for `torch.distributed.algorithms.Join`, behind the model: a rank that has no more inputs goes on
        making steps, as the others do.
        """
        if self._joinable is None:
            from torch_spyre.gc._join import JoinablePlan

            self._joinable = JoinablePlan(self, self._group)
        return self._joinable

    def _active_run(self) -> Run:
        if self._run is None:
            raise RuntimeError("the collection plan is not active; call step() and wanted() inside `with plan:`")
        return self._run


def _readings(device: DeviceLike) -> Device:
    lazy_init()
    index = existing_index(device)
    _, capacity_bytes = core().mem_get_info(index)
    return Device(
        capacity_bytes,
        in_use_bytes=lambda: core().memory_stats(index)["allocated_bytes.all.current"],
        events=lambda: core().pressure_stats(index)["events"],
    )


def _is_group(group: object) -> bool:
    """Whether `torch.distributed.new_group` may have returned it; to who is not in the group it returns a mark."""
    if not distributed.is_available():
        return False
    return isinstance(group, distributed.ProcessGroup) or group == distributed.GroupMember.NON_GROUP_MEMBER


def planned(
    *,
    warmup_steps: int = 3,
    freeze: bool = True,
    young_bytes: int | None = None,
    full_bytes: int | None = None,
    young_objects: int = 50_000,
    full_objects: int | None = None,
    time_share: float = 0.02,
    device: DeviceLike = None,
    synchronize: bool = True,
    group: distributed.ProcessGroup | None = None,
    agree_every: int = 1,
) -> Plan:
    """A collection plan for a training loop: a context manager, whose `step` ends each step.

    Inside, automatic collection is off. After the warm-up everything is collected, and what is alive is frozen
    (`gc.freeze`), so that later collections look only at what was made since. At exit the collector is as it was: on
    or off, and thawed, unless something else has called `gc.freeze` too. If something had before, the plan does not
    freeze.

    Args:
        warmup_steps: steps before the freeze; 0 freezes at entry. Collections are planned from the first step.
        freeze: whether to freeze at all.
        young_bytes: growth of the device since the last collection after which the young generations are collected;
            None is a 16th of its memory. Free-threaded Python has no young generations, and collects everything.
        full_bytes: growth since the last full collection after which everything is collected; None is four times
            `young_bytes`.
        young_objects: the same for objects that Python's collector counts, made since the last collection.
        full_objects: and for those made since the last full one; None is ten times `young_objects`.
        time_share: the most that full collections may take of the time since entry, or since the end of the warm-up,
            above 0; 1 is no limit. What would exceed it waits. Under memory pressure the allocator collects
            nevertheless.
        device: the device that is watched; None is the current one at entry.
        synchronize: whether all ranks collect after the same step when one of them asks; with one process it means
            nothing.
        group: the ranks that do, on any backend; None is the default group. All of them use the plan.
        agree_every: after how many steps the ranks agree. What they agree on is done after the step that follows.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument has a value that is not allowed.
    """
    limits = Limits.checked(
        warmup_steps=warmup_steps,
        freeze=freeze,
        young_bytes=young_bytes,
        full_bytes=full_bytes,
        young_objects=young_objects,
        full_objects=full_objects,
        time_share=time_share,
    )
    checked_bool("synchronize", synchronize)
    if group is not None and not synchronize:
        raise ValueError("group is for plans with synchronize=True; this one has synchronize=False")
    checked_int("agree_every", agree_every, "a number of steps", 1)
    if agree_every != 1 and not synchronize:
        raise ValueError(
            f"agree_every={agree_every} is for plans with synchronize=True; this one has synchronize=False"
        )
    if group is not None and not _is_group(group):
        raise TypeError(f"group={group!r} is not a process group; expected what torch.distributed.new_group returns")
    return Plan(limits, device, synchronize, group, agree_every)
