"""A rank that runs out of memory fails clearly, and the others get an error within the time that is promised."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from distributed.conftest import RankError, Ranks
from pressure_tools import fill

pytestmark = pytest.mark.pressure

TIMEOUT_SECONDS = 10
"""Of the group in these tests, enough for what goes well on a busy machine. What is asserted is the promise: an error
after this time, not for ever.
"""

SLACK_SECONDS = 30
"""For a slow machine."""


def step(rank: int, exhausted: int) -> float:
    """A training step that needs more memory than the rank `exhausted` has; returns the seconds of the others."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(1024, 1024).to("spyre"))
    loss = model(torch.ones(8, 1024, device="spyre")).sum()
    live: list[torch.Tensor] = []
    if rank == exhausted:
        fill(live)
    start = time.monotonic()
    try:
        loss.backward()
        dist.all_reduce(torch.ones(1, device="spyre"))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        return report(error, time.monotonic() - start)
    raise AssertionError("no error")


def report(error: RuntimeError, seconds: float) -> float:
    assert "spyre out of memory" not in str(error)
    return seconds


def test_a_rank_that_goes_on_without_the_others(tmp_path: Path) -> None:
    pair = Ranks(tmp_path, "spyre", TIMEOUT_SECONDS)
    try:
        failure, seconds = pair.answers(step, 0)
    finally:
        pair.end()
    assert isinstance(failure, RankError)
    assert failure.kind == "torch.OutOfMemoryError"
    assert "spyre out of memory. Tried to allocate" in failure.text
    assert isinstance(seconds, float), seconds
    assert seconds < TIMEOUT_SECONDS + SLACK_SECONDS


def exit_when_out_of_memory(rank: int) -> Any:
    try:
        return step(rank, 0)
    except torch.OutOfMemoryError:
        os._exit(3)


def test_a_rank_that_ends(tmp_path: Path) -> None:
    """The connections of a process that ends are closed, so the others need not wait for a timeout."""
    pair = Ranks(tmp_path, "spyre", timeout_seconds=600)
    try:
        for pipe in pair.pipes:
            pipe.send((exit_when_out_of_memory, ()))
        seconds = pair.answer(1)
        pair.processes[0].join(SLACK_SECONDS)
        assert pair.processes[0].exitcode == 3
    finally:
        pair.end()
    assert isinstance(seconds, float), seconds
    assert seconds < SLACK_SECONDS


PROGRAM = """
    import os, sys, torch
    import torch.distributed as dist
    from torch import nn

    dist.init_process_group("spyre")
    rank = dist.get_rank()
    torch.manual_seed(0)
    ours = nn.Linear(256, 256).to("spyre")
    model = nn.parallel.DistributedDataParallel(ours)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    live = []
    for step in range(3):
        if step == 2 and rank == int(sys.argv[1]):
            while True:
                live.append(torch.empty(1 << 20, dtype=torch.uint8, device="spyre"))
        optimizer.zero_grad()
        model(torch.full((4, 256), float(rank), device="spyre")).square().mean().backward()
        optimizer.step()
    total = ours.weight.detach().sum()
    both = [torch.zeros_like(total) for _ in range(2)]
    dist.all_gather(both, total)
    assert both[0].item() == both[1].item()
    dist.destroy_process_group()
    sys.stdout.write(f"rank {rank} done, weights {total.item():.4f}\\n")
"""


def torchrun(folder: Path, exhausted: int) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    # Standalone: the agent takes a free port of its own.
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", program, str(exhausted)],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_torchrun(tmp_path: Path) -> None:
    completed = torchrun(tmp_path, exhausted=-1)
    assert completed.returncode == 0, completed.stderr
    lines = sorted(line for line in completed.stdout.splitlines() if "done" in line)
    assert [line.split(",")[0] for line in lines] == ["rank 0 done", "rank 1 done"]
    assert len({line.split(",")[1] for line in lines}) == 1


def test_torchrun_ends_when_a_rank_is_out_of_memory(tmp_path: Path) -> None:
    completed = torchrun(tmp_path, exhausted=1)
    assert completed.returncode != 0
    assert "torch.OutOfMemoryError: spyre out of memory. Tried to allocate 1.00 MiB" in completed.stderr
    assert "done" not in completed.stdout
