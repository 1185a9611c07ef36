"""Draw how much of the device a run used, step by step."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # Before pyplot is imported: no window, only files.

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator

INK = "#22303c"
USED = "#2f6f9f"
RESCUED = "#2e8b57"
LIMIT = "#b8433b"
FAINT = "#8b98a5"


def draw(result: dict[str, Any], title: str, path: Path) -> None:
    """Draw one run: the used memory, the capacity, where the collector helped, and where the run died."""
    used_mib = [used / 2**20 for used in result["used_bytes"]]
    capacity_mib = result["capacity_bytes"] / 2**20
    steps = range(1, len(used_mib) + 1)

    figure, axes = plt.subplots(figsize=(10, 4.4), dpi=150, layout="constrained")
    axes.fill_between(steps, used_mib, color=USED, alpha=0.15, linewidth=0)
    axes.plot(steps, used_mib, color=USED, linewidth=1.6, label="used device memory")
    limit = f"capacity, {capacity_mib:.0f} MiB"
    axes.axhline(capacity_mib, color=LIMIT, linewidth=1.2, linestyle=(0, (6, 3)), label=limit)

    mark_rescues(axes, result["rescued"], capacity_mib)
    if "out_of_memory" in result:
        mark_out_of_memory(axes, result["step"], used_mib[-1], capacity_mib)

    axes.set_title(title, loc="left", color=INK, fontsize=13, fontweight="bold", pad=12)
    axes.set_xlabel("training step", color=INK)
    axes.set_ylabel("device memory (MiB)", color=INK)
    axes.set_xlim(0, result["steps"] + 6)
    axes.set_ylim(0, capacity_mib * 1.16)
    axes.yaxis.set_major_locator(MultipleLocator(16))
    axes.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.6)
    axes.tick_params(colors=INK, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.legend(loc="upper left", frameon=False, ncols=3, labelcolor=INK, borderaxespad=0.2)
    figure.savefig(path)
    plt.close(figure)


def mark_rescues(axes: Axes, rescued: list[int], capacity_mib: float) -> None:
    """Mark the steps in which an allocation failed at first and was served after a collection."""
    before = [0, *rescued]
    steps = [step for step, count in enumerate(rescued, start=1) if count > before[step - 1]]
    if steps:
        axes.plot(
            steps,
            [capacity_mib] * len(steps),
            linestyle="none",
            marker="v",
            markersize=7,
            color=RESCUED,
            label=f"exhausted: garbage collected, allocation served ({rescued[-1]} times)",
        )


def mark_out_of_memory(axes: Axes, step: int, used_mib: float, capacity_mib: float) -> None:
    axes.plot([step - 1, step], [used_mib, capacity_mib], color=USED, linewidth=1.6)
    axes.plot(step, capacity_mib, marker="X", markersize=11, color=LIMIT, markeredgecolor="white")
    axes.annotate(
        f"out of memory\nin step {step}",
        (step, capacity_mib),
        xytext=(18, -46),
        textcoords="offset points",
        color=LIMIT,
        fontsize=11,
        arrowprops={"arrowstyle": "-", "color": LIMIT, "linewidth": 0.8},
    )
