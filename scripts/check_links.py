"""Check that every relative link in the documents leads to a file, and every #fragment to a heading."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """Return the fragments of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> list[str]:
    broken = []
    for link in LINK.findall(FENCE.sub("", document.read_text())):
        if "://" in link:
            continue
        path, _, fragment = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (fragment and fragment not in anchors(target)):
            broken.append(f"{document.relative_to(ROOT)}: {link}")
    return broken


def main() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    broken = [line for name in listed for line in broken_links(ROOT / name)]
    if broken:
        sys.exit("broken links:\n  " + "\n  ".join(broken))


if __name__ == "__main__":
    main()
