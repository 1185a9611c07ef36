"""Ranks that share a collection plan collect after the same step; one that leaves is noticed, not waited for."""

from __future__ import annotations

import gc
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join

from conftest import FREE_THREADED
from distributed.conftest import Ranks
from pressure_tools import MIB, block, fill_with_garbage, make_garbage
from torch_spyre.gc import Generation, Plan, planned

YOUNG = Generation.FULL if FREE_THREADED else Generation.YOUNG

WARMUP = 2
"""Steps; the ranks end it together without asking each other."""


def plan_of(**arguments: Any) -> Plan:
    return planned(**{"warmup_steps": WARMUP, "young_bytes": 2 * MIB, "time_share": 1, **arguments})


def collections(plan: Plan) -> list[tuple[int, int]]:
    """Steps and generations of what was collected after the warm-up."""
    return sorted({(each.step, each.generation) for each in plan.statistics.recent if each.step > WARMUP})


def one_makes_garbage(rank: int, maker: int, every: int, group: str | None) -> dict[str, Any]:
    gc.collect()
    backend = dist.new_group(backend=group) if group else None
    with plan_of(agree_every=every, group=backend) as plan:
        for step in range(1, 13):
            if rank == maker and step > WARMUP:
                make_garbage(MIB)
            plan.step()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    statistics = plan.statistics
    assert statistics.steps == 12
    assert statistics.agreement_wait_ns > 0
    return {
        "collections": collections(plan),
        "elsewhere": statistics.asked_elsewhere,
        "agreements": statistics.agreements,
        "reclaimed": statistics.reclaimed_bytes,
    }


@pytest.mark.parametrize(
    ("maker", "every", "group", "steps"),
    [
        (0, 1, None, [5, 8, 11]),
        (1, 1, "gloo", [5, 8, 11]),
        (1, 1, "spyre:spyre", [5, 8, 11]),
        (0, 4, None, [5, 9]),
    ],
    ids=["spyre", "gloo", "without_cpu_tensors", "every_fourth_step"],
)
def test_all_collect_after_the_step_that_follows(
    ranks: Ranks, maker: int, every: int, group: str | None, steps: list[int]
) -> None:
    """The garbage of two steps makes one rank ask, and all collect that of three."""
    results = ranks.run(one_makes_garbage, maker, every, group)
    assert [result["collections"] for result in results] == [[(step, YOUNG) for step in steps]] * 2
    assert [result["agreements"] for result in results] == [12 // every + 1] * 2
    asked, other = results[maker], results[1 - maker]
    assert (asked["elsewhere"], other["elsewhere"]) == (0, len(steps))
    assert asked["reclaimed"] >= 3 * MIB * len(steps)
    assert other["reclaimed"] == 0


def each_for_itself(rank: int) -> list[tuple[int, int]]:
    with plan_of(synchronize=False) as plan:
        for step in range(1, 7):
            if step > WARMUP + rank:
                make_garbage(MIB)
            plan.step()
    assert plan.statistics.agreements == 0
    return collections(plan)


def test_without_synchronization_each_collects_for_itself(ranks: Ranks) -> None:
    assert ranks.run(each_for_itself) == [[(4, YOUNG), (6, YOUNG)], [(5, YOUNG)]]


def in_the_programs_reduction(rank: int) -> list[tuple[int, int]]:
    with plan_of(synchronize=False) as plan:
        for step in range(1, 7):
            if rank == 0 and step > WARMUP:
                make_garbage(MIB)
            report = torch.tensor([float(step), float(plan.wanted())], device="spyre")
            dist.all_reduce(report, dist.ReduceOp.MAX)
            plan.step(agreed=report[1].item())
    return collections(plan)


def test_the_program_may_agree_in_a_reduction_of_its_own(ranks: Ranks) -> None:
    assert ranks.run(in_the_programs_reduction) == [[(4, YOUNG), (6, YOUNG)]] * 2


def agreed_twice(rank: int) -> None:
    with planned() as plan, pytest.raises(ValueError, match="is for plans with synchronize=False"):
        plan.step(agreed=0)


def test_a_plan_that_agrees_by_itself_takes_no_agreement(ranks: Ranks) -> None:
    ranks.run(agreed_twice)


def one_under_pressure(rank: int) -> dict[str, Any]:
    gc.collect()
    with plan_of(young_bytes=1 << 40) as plan:
        for step in range(1, 7):
            if rank == 1 and step == 3:
                fill_with_garbage()
                block(8 * MIB)
            plan.step()
    return {"collections": collections(plan), "emergencies": plan.statistics.emergencies}


@pytest.mark.pressure
def test_what_filled_one_device_is_collected_on_all(ranks: Ranks) -> None:
    results = ranks.run(one_under_pressure)
    assert [result["collections"] for result in results] == [[(4, Generation.FULL)]] * 2
    assert [result["emergencies"] for result in results] == [0, 1]


def train(rank: int, model: nn.Module, plan: Plan, steps: int) -> None:
    for _ in range(steps):
        make_garbage(MIB)
        model(torch.ones(4, 16, device="spyre")).sum().backward()
        plan.step()


def uneven(rank: int) -> list[tuple[int, int]]:
    gc.collect()
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 16).to("spyre"))
    with plan_of() as plan:
        with Join([model, plan.joinable]):
            train(rank, model, plan, steps=[5, 12][rank])
        assert plan.statistics.steps == 12
    return collections(plan)


def test_join_shadows_the_steps_of_a_rank_without_inputs(ranks: Ranks) -> None:
    first, second = ranks.run(uneven)
    assert first == second
    assert len(first) >= 3
    assert first[-1][0] > 5 + 2


def leaves_early(rank: int, fail: bool) -> str:
    try:
        with plan_of() as plan:
            for _ in range(3 if rank == 1 else 9):
                plan.step()
            if rank == 1 and fail:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    except RuntimeError as error:
        assert rank == 0
        after = plan.statistics.steps
        return f"{after}: {error}" + check_collector_and_group()
    assert rank == 1
    return "left" + check_collector_and_group()


def check_collector_and_group() -> str:
    """Nothing is left over: the collector is as it was, and the group can be used."""
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    both = torch.ones(1)
    dist.all_reduce(both)
    assert both.item() == 2
    return ""


@pytest.mark.parametrize("fail", [False, True], ids=["fewer_steps", "exception"])
def test_a_rank_that_leaves_is_noticed(ranks: Ranks, fail: bool) -> None:
    stays, leaves = ranks.run(leaves_early, fail)
    assert leaves == "left"
    # The fourth all-reduce meets that of the rank that left; it is read after the fifth step.
    assert stays.startswith("5: a rank has left the collection plan that this rank is still in: it made fewer steps")
    assert "torch.distributed.algorithms.Join" in stays


TIMEOUT = timedelta(seconds=2)
"""Of the group below, once it is made, which may take longer. That there is an error is asserted, not how late."""


def steps_alone(rank: int) -> str:
    group: Any = dist.new_group(backend="gloo")
    group._get_backend(torch.device("cpu"))._set_default_timeout(TIMEOUT)
    if rank == 1:
        return "never entered"
    try:
        with plan_of(group=group) as plan:
            for _ in range(9):
                plan.step()
    except RuntimeError as error:
        assert gc.isenabled()
        assert gc.get_freeze_count() == 0
        return str(error)
    return "no error"


def test_a_rank_that_makes_no_steps_ends_the_wait_at_the_timeout(ranks: Ranks) -> None:
    alone, other = ranks.run(steps_alone)
    assert other == "never entered"
    assert alone.startswith("the ranks could not agree after step 1 on what to collect: ")
    assert "has not made this step within the timeout of the process group" in alone


def not_in_the_group(rank: int) -> None:
    group: Any = dist.new_group([0])  # Rank 1 gets a number that stands for no group.
    if rank == 1:
        with pytest.raises(RuntimeError, match="this process is not in the process group"):
            planned(group=group).__enter__()
        assert gc.isenabled()
    else:
        with planned(group=group) as plan:
            plan.step()
        assert plan.statistics.agreements == 0


def test_a_rank_outside_of_the_group_is_refused(ranks: Ranks) -> None:
    ranks.run(not_in_the_group)
