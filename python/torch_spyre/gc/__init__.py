"""Planned garbage collection for training: when Python's collector runs, and on which ranks, is decided here.

Automatic collections come when they come: in the middle of a step, at another step on each rank, and each walks the
whole heap of the process. A rank that collects lets all others wait at their next collective. A plan turns automatic
collection off, freezes what is alive after the warm-up, and collects between steps, on all ranks at the same step:

    with torch_spyre.gc.planned() as plan:
        for batch in batches:
            train(batch)
            plan.step()

Under memory pressure the allocator collects as ever. `torch.spyre.gc` is this module. See docs/planned_collection.md.
`torch_spyre.gc.transformers` and `torch_spyre.gc.lightning` have callbacks for those trainers.
"""

from __future__ import annotations

from torch_spyre.gc._limits import Generation
from torch_spyre.gc._plan import Plan, planned
from torch_spyre.gc._statistics import Collection, PlanStatistics

__all__ = ["Collection", "Generation", "Plan", "PlanStatistics", "planned"]
