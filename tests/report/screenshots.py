"""Writes the pictures of the report page that the documents show: light, dark, and on a phone.

`scripts/report_tests.sh images` runs it, on a training that never was.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from browser import Browser, Page

IMAGES = Path(__file__).resolve().parent.parent.parent / "docs/images"


def take(page: Page, report: Path, name: str, at: str) -> None:
    page.open(report)
    page.evaluate(f"document.querySelector({at!r}).scrollIntoView()")
    page.frame()
    page.screenshot(IMAGES / f"report-{name}.png")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        trace, report = Path(folder) / "training.trace", Path(folder) / "training.html"
        subprocess.run([os.environ["SYNTHETIC_TRACE"], str(trace), "--events", "30000"], check=True)
        subprocess.run([os.environ["FLEXMEM"], "report", str(trace), "-o", str(report)], check=True)
        browser = Browser(Path(os.environ["CHROMIUM"]))
        try:
            for name in ("light", "dark"):
                with browser.page(1100, 1180) as page:
                    page.prefer(name)
                    take(page, report, name, "body")
            with browser.page(360, 740, touch=True) as page:
                page.resize(360, 740, touch=True, ratio=2)
                take(page, report, "phone", "#timeline-title")
        finally:
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
