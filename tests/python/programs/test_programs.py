"""ResNet-18, a GPT-2 and a Llama train and write on spyre as on the CPU, on devices too small for their garbage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.pressure

FOLDER = Path(__file__).parents[1]
SECONDS = 110


def results_of(program: str, *arguments: str, device_memory: str) -> dict[str, Any]:
    """What a program printed, after checking that garbage brought it under pressure and never made it fail."""
    completed = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", f"programs.{program}", *arguments],
        cwd=FOLDER,
        env={**os.environ, "TORCH_SPYRE_ALLOC_CONF": f"device_memory:{device_memory}"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    results: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    pressure = results["pressure"]
    assert pressure["events"] >= 2, pressure
    assert (pressure["rescued"], pressure["failed"]) == (pressure["events"], 0)
    return results


def assert_same(results: dict[str, Any], *figures: str) -> None:
    for name in (*figures, "losses", "weights"):
        assert results["spyre"][name] == pytest.approx(results["cpu"][name], rel=1e-3, abs=1e-3), name


def test_resnet18_trains_as_on_the_cpu() -> None:
    pytest.importorskip("torchvision", reason="not among this environment's packages")
    assert_same(results_of("resnet18", device_memory="112MiB"), "logits")


@pytest.mark.parametrize(("name", "device_memory"), [("gpt2", "52MiB"), ("llama", "40MiB")])
def test_a_language_model_trains_and_writes_as_on_the_cpu(name: str, device_memory: str) -> None:
    pytest.importorskip("transformers", reason="not among this environment's packages")
    results = results_of("language_model", name, device_memory=device_memory)
    assert_same(results)
    for manner in ("greedy", "beams", "sampled"):
        assert results["spyre"][manner] == results["cpu"][manner], manner
