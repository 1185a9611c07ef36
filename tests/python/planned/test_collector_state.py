"""A plan takes the collector over and gives it back as it was, however it ends; there is one plan at a time."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import warnings
from collections.abc import Callable
from typing import ClassVar

import pytest

from pressure_tools import MIB, Node, block, exit_status, fork, free_bytes, make_garbage
from torch_spyre.gc import Generation, Plan, planned

pytestmark = pytest.mark.usefixtures("collector_as_found")


def leave(plan: Plan) -> None:
    with plan:
        plan.step()


def fail(plan: Plan) -> None:
    def body() -> None:
        with plan:
            plan.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()


def abandon(plan: Plan) -> None:
    plan.__enter__()
    plan.step()
    plan.abandon()
    plan.abandon()


@pytest.mark.parametrize("end", [leave, fail, abandon])
@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_before(end: Callable[[Plan], None], enabled: bool) -> None:
    plan = planned(warmup_steps=1)
    (gc.enable if enabled else gc.disable)()
    try:
        end(plan)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert not plan.active
    assert plan.statistics.frozen_objects > 0
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("name", ["enable", "disable", "unfreeze"])
def test_an_interrupt_at_the_beginning_or_the_end_leaves_no_plan_behind(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(gc, name)

    def interrupted() -> None:  # As by ^C in the collection that follows.
        real()
        raise KeyboardInterrupt

    def body() -> None:
        with planned(warmup_steps=1) as plan:
            plan.step()

    monkeypatch.setattr(gc, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        body()
    monkeypatch.undo()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    with planned():
        assert not gc.isenabled()


def test_automatic_collection_is_off_inside() -> None:
    with planned() as plan:
        assert plan.active
        assert not gc.isenabled()
        plan.step()
        assert not gc.isenabled()


def test_the_warmup_ends_in_a_full_collection_and_a_freeze() -> None:
    with planned(warmup_steps=2) as plan:
        assert plan.step() is Generation.NONE
        assert gc.get_freeze_count() == plan.statistics.frozen_objects == 0
        assert plan.step() is Generation.FULL
        assert plan.statistics.frozen_objects >= gc.get_freeze_count() > 0
        assert {each.step for each in plan.statistics.recent} == {2}
        assert not any(each.asked_here for each in plan.statistics.recent)
        assert plan.step() is Generation.NONE


def test_no_warmup_freezes_at_entry() -> None:
    with planned(warmup_steps=0) as plan:
        assert plan.statistics.frozen_objects >= gc.get_freeze_count() > 0


def test_without_freeze() -> None:
    with planned(warmup_steps=1, freeze=False) as plan:
        assert plan.step() is Generation.FULL
        assert gc.get_freeze_count() == plan.statistics.frozen_objects == 0


def test_what_is_garbage_at_the_freeze_is_collected_in_all_its_waves() -> None:
    free = free_bytes()

    class Owner:
        """Dead only when a finalizer of other garbage lets go of it."""

        owned: ClassVar[list[object]] = []

        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            Owner.owned.clear()

    with planned(warmup_steps=1) as plan:
        make_garbage_kept_by(Owner.owned)
        Owner()
        assert free_bytes() < free
        plan.step()
        assert free_bytes() == free
        assert plan.statistics.full == 3  # Its owner; the garbage; nothing.


def make_garbage_kept_by(keeper: list[object]) -> None:
    node = Node()
    node.tensor = block(MIB)
    keeper.append(node)


def test_a_second_plan_is_refused_while_one_is_active() -> None:
    with planned() as plan:
        for other in (planned(), plan):
            with pytest.raises(RuntimeError, match="a collection plan is active already"):
                other.__enter__()
        assert plan.active
        assert plan.step() is Generation.NONE
        assert not gc.isenabled()


def test_a_plan_can_be_entered_again_and_counts_anew() -> None:
    plan = planned()
    for _ in range(2):
        with plan:
            plan.step()
        assert plan.statistics.steps == 1


def test_a_plan_that_is_not_active_makes_no_steps() -> None:
    plan = planned()
    for call in (plan.step, plan.wanted):
        with pytest.raises(RuntimeError, match="not active"):
            call()


def test_another_thread_is_refused() -> None:
    errors: list[str] = []

    def use() -> None:
        for call in (plan.step, plan.wanted):
            try:
                call()
            except RuntimeError as error:
                errors.append(str(error))

    with planned() as plan:
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert plan.statistics.steps == 0
    assert errors == ["a collection plan is used on the thread that entered it, and this is another"] * 2


def test_others_who_froze_before_keep_what_they_froze() -> None:
    gc.freeze()
    try:
        with planned(warmup_steps=1) as plan:
            plan.step()
            assert plan.statistics.frozen_objects == 0
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_others_who_freeze_inside_keep_what_they_froze() -> None:
    plan = planned(warmup_steps=1)
    plan.__enter__()
    plan.step()
    live = [[number] for number in range(5000)]
    gc.freeze()
    with pytest.warns(RuntimeWarning, match=r"objects stay frozen.*something called gc.freeze\(\)"):
        plan.__exit__(None, None, None)
    assert gc.get_freeze_count() > plan.statistics.frozen_objects
    assert gc.isenabled()
    gc.unfreeze()
    del live


def test_a_warning_that_is_an_error_leaves_the_collector_as_it_was() -> None:
    # pytest's settings make it one.
    with pytest.raises(RuntimeWarning, match="objects stay frozen"):
        frozen_inside()
    assert gc.isenabled()
    gc.unfreeze()
    with planned() as plan:
        assert plan.active


def frozen_inside() -> None:
    with planned(warmup_steps=1) as plan:
        plan.step()
        live = [[number] for number in range(5000)]
        gc.freeze()
        assert len(live) == 5000


def test_others_who_thaw_inside() -> None:
    with warnings.catch_warnings(), planned(warmup_steps=1) as plan:
        warnings.simplefilter("error")
        plan.step()
        gc.unfreeze()


def test_a_replaced_gc_collect_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "collect", lambda *_: 0)
    free = free_bytes()
    with planned(warmup_steps=1) as plan:
        make_garbage()
        plan.step()
        assert free_bytes() == free


def test_a_forked_child_collects_by_itself() -> None:
    with planned():
        child = fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert exit_status(child) == 0
        assert not gc.isenabled()


def test_a_forked_child_makes_no_steps_and_may_leave() -> None:
    plan = planned(warmup_steps=1)
    with plan:
        plan.step()
        child = fork()
        if child == 0:
            try:
                plan.step()
            except RuntimeError as error:
                plan.__exit__(None, None, None)
                os._exit(0 if "this is a forked child" in str(error) and gc.isenabled() else 1)
            os._exit(2)
        assert exit_status(child) == 0
        assert plan.step() is Generation.NONE


def test_an_inactive_plan_travels_to_other_processes() -> None:
    copy = pickle.loads(pickle.dumps(planned(warmup_steps=1, young_bytes=MIB)))
    with copy:
        assert copy.step() is Generation.FULL


def test_a_bad_device_is_refused_at_entry() -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        planned(device=7).__enter__()
    assert gc.isenabled()


@pytest.mark.parametrize("agreed", [3, -1, 0.5])
def test_what_was_agreed_must_be_a_generation(agreed: float) -> None:
    with planned() as plan, pytest.raises(ValueError, match=f"agreed={agreed} is no generation; expected the maximum"):
        plan.step(agreed=agreed)


def test_what_the_program_agreed_on_is_done() -> None:
    with planned(warmup_steps=9) as plan:
        assert plan.step(agreed=0) is Generation.NONE
        assert plan.step(agreed=1.0) is Generation.YOUNG
        assert plan.step(agreed=2) is Generation.FULL
        assert (plan.statistics.young, plan.statistics.full) == (1, 1)
        assert plan.statistics.asked_elsewhere == 2
