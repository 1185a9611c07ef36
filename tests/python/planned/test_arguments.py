"""Arguments that a plan refuses name their value and what was expected."""

from __future__ import annotations

import pytest

from torch_spyre.gc import planned

ARGUMENTS = [
    ({"warmup_steps": -1}, ValueError, "warmup_steps=-1 is out of range; expected a number of steps, at least 0"),
    ({"warmup_steps": 1.5}, TypeError, "warmup_steps=1.5 is not an int; expected a number of steps, at least 0"),
    ({"freeze": 1}, TypeError, "freeze=1 is not a bool; expected True or False"),
    ({"young_bytes": 0}, ValueError, "young_bytes=0 is out of range; expected bytes, at least 1"),
    ({"full_bytes": True}, TypeError, "full_bytes=True is not an int; expected bytes, at least 1"),
    ({"young_bytes": 9, "full_bytes": 8}, ValueError, "full_bytes=8 is below young_bytes=9; expected at least as much"),
    ({"full_objects": 49_999}, ValueError, "full_objects=49999 is below young_objects=50000; expected at least as muc"),
    ({"young_objects": "9"}, TypeError, "young_objects='9' is not an int; expected a number of objects, at least 1"),
    ({"time_share": 0}, ValueError, "time_share=0 is out of range; expected a share, above 0 and at most 1"),
    ({"time_share": "all"}, TypeError, "time_share='all' is not a number; expected a share, above 0 and at most 1"),
    ({"time_share": float("nan")}, ValueError, "time_share=nan is out of range"),
    ({"synchronize": None}, TypeError, "synchronize=None is not a bool; expected True or False"),
    ({"group": "x"}, TypeError, "group='x' is not a process group; expected what torch.distributed.new_group returns"),
    ({"agree_every": 0}, ValueError, "agree_every=0 is out of range; expected a number of steps, at least 1"),
    ({"agree_every": 5, "synchronize": False}, ValueError, "agree_every=5 is for plans with synchronize=True"),
]


@pytest.mark.parametrize(("arguments", "error", "text"), ARGUMENTS, ids=[str(each[0]) for each in ARGUMENTS])
def test_bad_arguments(arguments: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as raised:
        planned(**arguments)  # type: ignore[arg-type]
    assert text in str(raised.value)
