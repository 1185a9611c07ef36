"""FSDP2 in processes that `torchrun` starts, as users start them; DDP there is in test_failures.py."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = """
import sys
import torch.distributed as dist

from distributed.test_training import check_fsdp, train_under_pressure

dist.init_process_group("spyre")
rank = dist.get_rank()
if sys.argv[1] == "train":
    check_fsdp(rank, {}, True)
    sys.stdout.write(f"rank {rank}: as on one CPU\\n")
else:
    counters = train_under_pressure(rank, 1, True)
    sys.stdout.write(f"rank {rank}: rescued {counters['rescued'] > 0}, failed {counters['failed']}\\n")
dist.destroy_process_group()
"""


def run(folder: Path, what: str) -> list[str]:
    """The lines that the two processes wrote, in order."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    tests = str(Path(__file__).parent.parent)
    environment = {
        "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")])),
        "TORCH_SPYRE_ALLOC_CONF": "device_memory:64MiB",
    }
    completed = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", program, what],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return sorted(line for line in completed.stdout.splitlines() if line.startswith("rank "))


def test_fsdp2(tmp_path: Path) -> None:
    assert run(tmp_path, "train") == ["rank 0: as on one CPU", "rank 1: as on one CPU"]


@pytest.mark.pressure
def test_fsdp2_with_a_rank_under_pressure(tmp_path: Path) -> None:
    assert run(tmp_path, "pressure") == ["rank 0: rescued False, failed 0", "rank 1: rescued True, failed 0"]
