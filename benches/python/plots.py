"""Draw latency.svg and packing.svg from target/bench/summary.json, which the benchmarks have written.

    plots.py            into target/bench
    plots.py FOLDER     elsewhere: docs/images has the copies that docs/performance.md shows

What is ours is blue, the peers are grey: who cannot tell colours apart still has shapes, labels and figures. The images
follow the reader's choice of light or dark, with a background of their own, since a page may have chosen otherwise.
"""

import io
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # Before pyplot is imported: no window, only files.

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

BENCH = Path(__file__).resolve().parents[2] / "target/bench"

INK, FAINT, PAPER, OURS, PEER = "#22303c", "#d5dbe1", "#fefefe", "#0072b2", "#77838f"
DARK = {INK: "#e6edf3", FAINT: "#3a424c", PAPER: "#0d1117", OURS: "#56b4e9", PEER: "#9aa5b1"}
"""What each colour becomes for readers who prefer dark."""

TEXT_SIZE = 11
"""Of the smallest text, in units of the image, which is shown no smaller than it is drawn."""

PERCENTILES = {"p50": "o", "p90": "|", "p99": "D", "p99.9": ">"}

FASTEST_NS = 1.0
"""Less is drawn as this: it is below what the clock can tell."""

WORKLOADS = {
    "train": "training, generated",
    "kv": "key-value cache",
    "mix": "wide mix",
    "pareto": "Pareto lifetimes",
    "phase": "change of phase",
    "minimalloc": "MiniMalloc, A to K",
    "snapshots": "real PyTorch programs",
}

STYLE = {
    "font.size": TEXT_SIZE,
    "axes.titlesize": TEXT_SIZE + 1,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": FAINT,
    "axes.facecolor": PAPER,
    "figure.facecolor": PAPER,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": TEXT_SIZE,
    "ytick.labelsize": TEXT_SIZE,
    # Text stays text: it can be read aloud, searched and copied.
    "svg.fonttype": "none",
    # The same figures make the same file.
    "svg.hashsalt": "flex",
}

Table = dict[str, dict[str, Any]]
"""By workload, then by contender."""


def main(output: Path) -> None:
    path = BENCH / "summary.json"
    summary = json.loads(path.read_text()) if path.exists() else {}
    missing = [key for key in ("latency_ns", "packing") if key not in summary]
    if missing:
        sys.exit(f"error: {path} has no {' and no '.join(missing)}: run `make bench` first")
    output.mkdir(parents=True, exist_ok=True)
    machine = describe(summary.get("machine", {}))
    for key, draw in (("latency_ns", draw_latency), ("packing", draw_packing)):
        target = output / f"{key.removesuffix('_ns')}.svg"
        target.write_text(svg(draw(summary[key], machine)))
        print(f"written to {target.relative_to(Path.cwd()) if target.is_relative_to(Path.cwd()) else target}")


def describe(machine: dict[str, Any]) -> str:
    model = machine.get("model", machine.get("processor", "unknown machine"))
    return f"{model}, {machine.get('cores', '?')} cores, load {machine.get('load', 'unknown')} at the end"


def draw_latency(table: Table, machine: str) -> Figure:
    """Four percentiles of each contender on a line, a panel for each workload."""
    figure, panels, contenders = grid(table, "Time of one allocation", f"left is faster, flex in blue; {machine}")
    times = [time for row in table.values() for percentiles in row.values() for time in percentiles.values()]
    # The same scale for all. The clock may be too coarse for the fastest.
    limits = max(min(times), FASTEST_NS) / 1.3, max(times) * 1.3
    for workload, axes in panels.items():
        for row, contender in enumerate(contenders):
            draw_percentiles(axes, row, contender, table[workload].get(contender))
        axes.set_xscale("log")
        axes.set_xlim(limits)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(axis="x", which="minor", length=0)
        axes.set_xlabel("nanoseconds, logarithmic")
    legend = [
        Line2D([], [], color=INK, marker=marker, linestyle="none", markersize=7, markeredgewidth=2, label=name)
        for name, marker in PERCENTILES.items()
    ]
    figure.legend(handles=legend, **legend_place(len(panels)), title="percentile")
    return figure


def draw_percentiles(axes: Axes, row: int, contender: str, percentiles: dict[str, float] | None) -> None:
    if percentiles is None:
        return
    color = color_of(contender)
    times = [max(percentiles[name], FASTEST_NS) for name in PERCENTILES]
    axes.plot(times, [row] * len(times), color=color, linewidth=2.4 if color == OURS else 1.4)
    for time, marker in zip(times, PERCENTILES.values(), strict=True):
        axes.plot(time, row, color=color, marker=marker, markersize=6, markeredgewidth=2 if marker == "|" else 0.5)


def draw_packing(table: Table, _machine: str) -> Figure:
    """A bar for each contender, a panel for each workload. The machine is left out: packing is the same on all."""
    title = "Packing: peak of live bytes over the smallest capacity that serves"
    figure, panels, contenders = grid(
        table, title, "longer is tighter, flex in blue; means of the traces of a workload"
    )
    for workload, axes in panels.items():
        for row, contender in enumerate(contenders):
            packing = table[workload].get(contender)
            if packing is None:
                continue
            axes.barh(row, packing, height=0.72, color=color_of(contender))
            axes.text(1.03, row, f"{packing:.3f}", va="center")
        axes.set_xlim(0, 1.2)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        axes.axvline(1, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set_xlabel("ratio; 1 is perfect")
    return figure


def grid(table: Table, title: str, note: str) -> tuple[Figure, dict[str, Axes], list[str]]:
    """A panel for each workload in two columns, with a row for each contender, ours on top."""
    workloads = [name for name in WORKLOADS if name in table] + sorted(table.keys() - WORKLOADS.keys())
    names = {contender for row in table.values() for contender in row}
    contenders = sorted(names, key=lambda name: (not is_ours(name), name.casefold()))
    rows = (len(workloads) + 1) // 2
    heading_inches = 0.8
    height = rows * (0.8 + 0.27 * len(contenders)) + heading_inches
    figure, axes = plt.subplots(rows, 2, figsize=(10, height), sharey=True, squeeze=False, layout="constrained")
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - heading_inches / height))
    figure.text(0.01, 1 - 0.15 / height, title, va="top", fontsize=TEXT_SIZE + 3, fontweight="bold")
    figure.text(0.01, 1 - 0.47 / height, note, va="top", fontsize=TEXT_SIZE)
    for spare in axes.flat[len(workloads) :]:
        spare.set_visible(False)
    panels = dict(zip(workloads, axes.flat, strict=False))
    for workload, panel in panels.items():
        panel.set_title(WORKLOADS.get(workload, workload), loc="left", fontweight="bold")
        panel.set_yticks(range(len(contenders)), contenders)
        panel.set_ylim(len(contenders) - 0.4, -0.6)
        panel.grid(axis="x", color=FAINT, linewidth=0.7)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(length=0)
    return figure, panels, contenders


def legend_place(panels: int) -> dict[str, Any]:
    """In the empty cell of the grid, or below it."""
    place = {"loc": "lower right", "bbox_to_anchor": (0.9, 0.1)} if panels % 2 else {"loc": "outside lower center"}
    return place | {"frameon": False, "labelspacing": 0.8, "fontsize": TEXT_SIZE}


def is_ours(contender: str) -> bool:
    return contender.casefold().startswith("flex")


def color_of(contender: str) -> str:
    return OURS if is_ours(contender) else PEER


def svg(figure: Figure) -> str:
    """The image, with the colours for dark beside those for light."""
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    rules = [
        f'[style*="{what}: {light}"] {{ {what}: {dark} !important }}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    ]
    style = f"<style>@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}</style>"
    head, defs, rest = written.getvalue().partition("<defs>")
    lines = f"{head}{style}\n {defs}{rest}".splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


if __name__ == "__main__":
    with matplotlib.rc_context(STYLE):
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else BENCH)
