"""Check the text that no formatter looks at.

Every relative link in the documents leads to a file, and every #fragment to a heading. Lines are at most 120 columns
wide in documents (tables, code and the commands of examples apart), scripts, and comments in Rust.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
COLUMNS = 120
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


def long_lines(file: Path) -> list[str]:
    text, found = file.read_text(), []
    if file.suffix == ".md":
        text = FENCE.sub(lambda code: "\n" * code[0].count("\n"), text)
    for number, line in enumerate(text.splitlines(), 1):
        checked = {".md": not line.startswith(("|", "<!-- output")), ".rs": line.lstrip().startswith("//")}.get(
            file.suffix, True
        )
        if checked and len(line) > COLUMNS:
            found.append(f"{file.relative_to(ROOT)}:{number}: {len(line)} columns")
    return found


def listed(*patterns: str) -> list[Path]:
    command = ["git", "ls-files", *patterns]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return [ROOT / name for name in names]


def main() -> None:
    problems = [f"broken link in {line}" for file in listed("*.md") for line in broken_links(file)]
    problems += [line for file in listed("*.md", "*.sh", "*.rs", "Makefile") for line in long_lines(file)]
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
