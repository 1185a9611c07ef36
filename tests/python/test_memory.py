"""`torch.spyre.memory`: statistics that move as tensors come and go, limits, and the pressure policy's arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from conftest import RunScript

memory = torch.spyre.memory

MIB = 1 << 20


def test_allocated_follows_tensors() -> None:
    before = memory.memory_allocated()
    tensor = torch.empty(MIB, dtype=torch.uint8, device="spyre")
    assert memory.memory_allocated() - before >= MIB
    assert torch.accelerator.memory_allocated() == memory.memory_allocated() == torch.spyre.memory_allocated()
    del tensor
    assert memory.memory_allocated() == before


def test_peak_and_accumulated() -> None:
    torch.empty(4 * MIB, dtype=torch.uint8, device="spyre")
    assert memory.max_memory_allocated() >= memory.memory_allocated() + 4 * MIB
    memory.reset_peak_memory_stats()
    assert memory.max_memory_allocated() == memory.memory_allocated()
    memory.reset_accumulated_memory_stats()
    torch.empty(MIB, dtype=torch.uint8, device="spyre")
    stats = memory.memory_stats()
    assert stats["requested_bytes.all.allocated"] == stats["requested_bytes.all.freed"] == MIB
    assert stats["allocation.all.allocated"] == 1


def test_views_of_the_statistics_agree() -> None:
    kept = torch.ones(100, device="spyre")
    stats = memory.memory_stats()
    assert list(stats) == sorted(stats)
    nested = memory.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == stats["allocated_bytes.all.current"]
    by_torch = torch.accelerator.memory_stats()
    for key in (
        "allocated_bytes.all.current",
        "requested_bytes.all.current",
        "num_ooms",
        "active.all.current",
    ):
        assert by_torch[key] == stats[key]
    free, total = memory.mem_get_info()
    assert total - free >= kept.nbytes


def test_empty_tensors_take_nothing() -> None:
    before = memory.memory_stats()["allocation.all.current"]
    kept = torch.empty(0, 5, device="spyre")
    assert kept.data_ptr() == 0
    assert memory.memory_stats()["allocation.all.current"] == before


def test_summary() -> None:
    summary = memory.memory_summary()
    assert "Allocated memory" in summary
    assert "Reserved segments" in summary
    assert "Reserved segments" not in memory.memory_summary(abbreviated=True)
    assert len({len(line) for line in summary.splitlines()}) == 1


def test_snapshot_is_a_list_of_segments() -> None:
    assert memory.memory_snapshot() == memory.memory_snapshot(0)
    assert isinstance(memory.memory_snapshot(), list)


def test_empty_cache() -> None:
    kept = torch.ones(10, device="spyre")
    torch.spyre.empty_cache()
    torch.accelerator.empty_cache()
    assert kept.sum().item() == 10


def test_out_of_memory(run_script: RunScript) -> None:
    run_script(
        """
        import torch
        kept = torch.ones(1024, device="spyre")
        for allocate in (lambda: torch.empty(128 << 20, dtype=torch.uint8, device="spyre"),
                         lambda: torch.ones(40 << 20, dtype=torch.uint8).to("spyre").double(),
                         lambda: torch.empty(2, device="spyre").resize_(64 << 20)):
            try:
                allocate()
            except torch.OutOfMemoryError as error:
                assert isinstance(error, torch.spyre.OutOfMemoryError)
                assert str(error).startswith("spyre out of memory. Tried to allocate"), error
            else:
                raise SystemExit("no error")
        assert torch.spyre.memory_stats()["num_ooms"] == 3
        assert (kept + 1).sum().item() == 2048
        """,
        env={"TORCH_SPYRE_ALLOC_CONF": "device_memory:64MiB"},
    ).check()


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_fraction_range(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"Invalid fraction value: .* Allowed range: 0~1"):
        memory.set_per_process_memory_fraction(fraction)


def test_fraction_type() -> None:
    with pytest.raises(TypeError, match="must be `float`, not str"):
        memory.set_per_process_memory_fraction("0.5")


class TestPressurePolicy:
    @pytest.fixture(autouse=True)
    def restored(self) -> Iterator[None]:
        policy = memory.get_pressure_policy()
        yield
        memory.set_pressure_policy(**policy)

    def test_defaults(self) -> None:
        assert memory.get_pressure_policy() == {"gc": "always", "escalate": True, "timeout_ms": 10000}

    def test_arguments_left_out_stay(self) -> None:
        memory.set_pressure_policy(gc="off")
        memory.set_pressure_policy(timeout_ms=5)
        memory.set_pressure_policy(escalate=False)
        memory.set_pressure_policy()
        assert memory.get_pressure_policy() == {"gc": "off", "escalate": False, "timeout_ms": 5}

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            (
                {"gc": "sometimes"},
                ValueError,
                r"gc='sometimes' is not a policy; expected one of 'always', 'respect_",
            ),
            ({"gc": True}, ValueError, "gc=True is not a policy"),
            ({"escalate": 1}, TypeError, "escalate=1 is not a bool"),
            (
                {"timeout_ms": 0},
                ValueError,
                "timeout_ms=0 is out of range; expected milliseconds, from 1 to 31536000000",
            ),
            ({"timeout_ms": -3}, ValueError, "timeout_ms=-3"),
            ({"timeout_ms": 2**70}, ValueError, "out of range"),
            ({"timeout_ms": 1.5}, TypeError, "timeout_ms=1.5 is not an int"),
            ({"timeout_ms": True}, TypeError, "timeout_ms=True is not an int"),
        ],
    )
    def test_rejects(self, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
        before = memory.get_pressure_policy()
        with pytest.raises(error, match=message):
            memory.set_pressure_policy(**arguments)
        assert memory.get_pressure_policy() == before


def test_pressure_stats_are_counters() -> None:
    assert all(isinstance(value, int) for value in memory.pressure_stats().values())
    memory.reset_pressure_stats()
    assert memory.pressure_stats("spyre:0")["events"] == 0
