"""PyTorch memory snapshots as traces: `python -m torch_spyre.memory_snapshots FILE.pickle -o FOLDER`.

Reads what `torch.cuda.memory._dump_snapshot()` writes, of all generations since 2022, without ever running anything
that a file names. A snapshot is often shared by strangers, and a pickle can run code: `pickle.load` must not see it.

    contents.read(path)     the file, checked
    timeline.timelines(…)   what happened on each device, with the blocks that were live before recording began
    text.lines(…)           as a trace that the benchmarks play

Nothing here needs a device.
"""

from torch_spyre.memory_snapshots.contents import Snapshot, read
from torch_spyre.memory_snapshots.errors import SnapshotError
from torch_spyre.memory_snapshots.text import lines
from torch_spyre.memory_snapshots.timeline import Timeline, timelines

__all__ = ["Snapshot", "SnapshotError", "Timeline", "lines", "read", "timelines"]
