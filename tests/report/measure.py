"""Prints what a report of many events costs: to make, to keep, to open. docs/report.md shows the output.

`scripts/report_tests.sh measure` runs it, on release builds.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from browser import Browser

MIB = 1 << 20


def used_by(command: list[str]) -> tuple[float, int]:
    """Run a command: its processor time in seconds, and the most memory that it had, in bytes."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = []
        for events in (10_000, 100_000, 1_000_000, 10_000_000):
            trace, report = folder / "training.trace", folder / "training.html"
            command = [os.environ["SYNTHETIC_TRACE"], str(trace), "--events", str(events), "--blocks", "16"]
            subprocess.run(command, check=True)
            processor_s, peak = used_by([os.environ["FLEXMEM"], "report", str(trace), "-o", str(report)])
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
                            for (let frame = 0; frame < 20; frame += 1) {
                                chart.isStale = true;
                                chart.draw();
                                map.draw();
                            }
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
