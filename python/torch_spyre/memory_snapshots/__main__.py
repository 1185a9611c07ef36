"""Convert PyTorch memory snapshots to traces, one for each device.

Says for each device how much of its history is there, and the peak of live bytes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch_spyre.memory_snapshots.contents import read
from torch_spyre.memory_snapshots.errors import SnapshotError
from torch_spyre.memory_snapshots.text import heading, lines
from torch_spyre.memory_snapshots.timeline import Timeline, timelines


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 0, or 1 if a file could not be read or written."""
    parser = argparse.ArgumentParser(prog="python -m torch_spyre.memory_snapshots", description=__doc__)
    parser.add_argument(
        "snapshots", nargs="+", type=Path, metavar="FILE", help="as torch.cuda's _dump_snapshot wrote it"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="write the traces there")
    parser.add_argument("--with-events", action="store_true", help="leave out devices on which nothing was recorded")
    options = parser.parse_args(arguments)
    try:
        for path in options.snapshots:
            for timeline in _of(path, options.with_events):
                print(*list(heading(timeline))[1:], sep="\n", end="\n\n")
                if options.output is not None:
                    _write(options.output, timeline, path)
    except (SnapshotError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _of(path: Path, with_events: bool) -> Iterator[Timeline]:
    for timeline in timelines(read(path)):
        if timeline.operations or not with_events:
            yield timeline


def _write(folder: Path, timeline: Timeline, path: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{path.stem}.device-{timeline.device}.txt"
    target.write_text("\n".join(lines(timeline)) + "\n")


if __name__ == "__main__":
    sys.exit(main())
