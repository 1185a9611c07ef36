"""Prints what a report of many events costs: to make, to keep, to open. docs/report.md shows the output.

`scripts/report_tests.sh measure` runs it, on release builds.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from browser import Browser

MIB = 1 << 20


def used() -> tuple[float, int]:
    """Processor time and the peak of memory of all children that ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = []
        for events in (10_000, 100_000, 1_000_000, 10_000_000):
            trace, report = folder / "training.trace", folder / "training.html"
            command = [os.environ["SYNTHETIC_TRACE"], str(trace), "--events", str(events), "--blocks", "16"]
            subprocess.run(command, check=True)
            before = used()[0]
            command = [os.environ["FLEXMEM"], "report", str(trace), "-o", str(report)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            processor_s, peak = used()[0] - before, used()[1]
            browser = Browser(Path(os.environ["CHROMIUM"]))
            try:
                with browser.page() as page:
                    start = time.monotonic()
                    page.open(report)
                    opened_s = time.monotonic() - start
                    heap = page.command("Runtime.getHeapUsage")
                    shown = heap["usedSize"] + heap.get("backingStorageSize", 0)
                    frames = page.evaluate(
                        """(() => {
                            const { chart, map } = flexmemReport.app;
                            const start = performance.now();
                            for (let frame = 0; frame < 20; frame += 1) { chart.isStale = true; chart.draw(); map.draw(); }
                            return (performance.now() - start) / 20;
                        })()"""
                    )
            finally:
                browser.close()
            size = report.stat().st_size
            rows.append(
                f"{events:>10,} {trace.stat().st_size / MIB:8.1f} {size / MIB:8.1f} {processor_s:8.1f} "
                f"{peak / MIB:8.0f} {opened_s:8.1f} {shown / MIB:8.0f} {frames:8.1f}"
            )
    print("              trace     page     made   memory   opened   memory    frame")
    print("    events      MiB      MiB        s      MiB        s      MiB       ms")
    print("\n".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
