"""The plots of the benchmarks: legible, for everyone, in light and dark, and complete."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib", reason="not among this environment's packages")

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = [ROOT / "docs/images" / name for name in ("latency.svg", "packing.svg")]
SMALLEST_TEXT = 11
CONTENDERS = ["flex arena", "FlexAllocator (locked)", "offset-allocator"]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Plots of invented figures, drawn by a copy of the program in a checkout of its own."""
    checkout = tmp_path_factory.mktemp("checkout")
    program = checkout / "benches/python/plots.py"
    program.parent.mkdir(parents=True)
    program.write_text((ROOT / "benches/python/plots.py").read_text())
    percentiles = {"p50": 20.5, "p90": 40.0, "p99": 100.0, "p99.9": 3000.0}
    summary = {
        "machine": {"model": "A <fine> machine", "cores": 2, "load": "0.1"},
        "latency_ns": {workload: dict.fromkeys(CONTENDERS, percentiles) for workload in ("train", "kv", "new")},
        "packing": {"mix": {"flex arena": 0.9271, "offset-allocator": 0.8542}, "minimalloc": {"flex arena": 0.5}},
    }
    (checkout / "target/bench").mkdir(parents=True)
    (checkout / "target/bench/summary.json").write_text(json.dumps(summary))
    subprocess.run([sys.executable, str(program)], check=True)
    return {name: checkout / f"target/bench/{name}.svg" for name in ("latency", "packing")}


def texts(image: Path) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.parse(image).iter("{http://www.w3.org/2000/svg}text")]


def test_what_was_measured_is_written_into_the_plots(drawn: dict[str, Path]) -> None:
    latency, packing = texts(drawn["latency"]), texts(drawn["packing"])
    assert {*CONTENDERS, "p50", "p90", "p99", "p99.9", "training, generated", "key-value cache", "new"} <= {*latency}
    assert "left is faster, flex in blue; A <fine> machine, 2 cores, load 0.1 at the end" in latency
    assert latency.count("nanoseconds, logarithmic") == 3
    assert {"0.927", "0.854", "0.500", "MiniMalloc, A to K"} <= {*packing}
    assert packing.count("ratio; 1 is perfect") == 2


def test_text_is_text_and_not_small(drawn: dict[str, Path]) -> None:
    for image in [*drawn.values(), *COMMITTED]:
        content = image.read_text()
        sizes = [float(size) for size in re.findall(r"font(?:-size)?: [^;\"]*?([\d.]+)px", content)]
        assert len(sizes) >= len(texts(image)) > 0, image
        assert min(sizes) >= SMALLEST_TEXT, image


def test_every_colour_has_one_for_dark(drawn: dict[str, Path]) -> None:
    for image in [*drawn.values(), *COMMITTED]:
        rules, rest = re.split(r"</style>", image.read_text(), maxsplit=1)
        for what, color in set(re.findall(r"(fill|stroke): (#\w{6})", rest)):
            assert f'[style*="{what}: {color}"]' in rules, f"{image}: {what} {color}"


def test_the_same_figures_make_the_same_file(drawn: dict[str, Path]) -> None:
    before = {name: path.read_text() for name, path in drawn.items()}
    program = drawn["latency"].parents[2] / "benches/python/plots.py"
    subprocess.run([sys.executable, str(program)], check=True)
    assert {name: path.read_text() for name, path in drawn.items()} == before


def test_without_a_measurement_it_says_what_to_run(drawn: dict[str, Path], tmp_path: Path) -> None:
    program = tmp_path / "benches/python/plots.py"
    program.parent.mkdir(parents=True)
    program.write_text((ROOT / "benches/python/plots.py").read_text())
    completed = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert completed.returncode == 1
    assert "summary.json has no latency_ns and no packing: run `make bench` first" in completed.stderr
