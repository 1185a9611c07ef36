"""Renews or checks the outputs shown in the documents: each is made by the command named in a comment before it.

    <!-- output of: python examples/history.py -->
    ```text
    ...what the command writes to standard output...
    ```

Commands run in the root of the checkout by bash, with `.venv/bin` and `target/release` in front of PATH and without the
variables that configure the device. `cat FILE` shows a program. What differs from run to run is named in the comment:

    output of:                 the same every time
    output (numbers vary) of:  but for the digits, and how much space or ruling stands beside them
    output (varies) of:        only that the command succeeds is checked
    output (exits N) of:       the command ends with that status; may be added to the others after a comma

`doc_examples.py` writes the outputs into the documents, all or those that are named; `--check` changes nothing, and
fails if one is not what its command writes now.
"""

import argparse
import difflib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = re.compile(
    r"^<!-- output(?: \((?P<how>[^)\n]*)\))? of: (?P<command>.+?) -->\n"
    r"(?P<fence>```+)(?P<language>[^\n]*)\n(?P<body>.*?)^(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
MARKER = re.compile(r"^<!-- output\b.*", re.MULTILINE)
CONFIGURES = re.compile(r"TORCH_SPYRE_ALLOC_|FLEX_|PYTORCH_.*ALLOC")
TIMEOUT_S = 180


class ExampleError(Exception):
    """What is wrong with an example."""


@dataclass(frozen=True)
class Stability:
    """What of an output is the same every time."""

    varies: bool = False
    numbers_vary: bool = False
    status: int = 0

    @classmethod
    def parse(cls, text: str | None) -> "Stability":
        words = [word.strip() for word in text.split(",")] if text else []
        status = 0
        for word in words:
            exits = re.fullmatch(r"exits (\d+)", word)
            if exits:
                status = int(exits[1])
            elif word not in ("varies", "numbers vary"):
                raise ExampleError(f"({text}): expected `varies`, `numbers vary` or `exits N`, not {word!r}")
        return cls("varies" in words, "numbers vary" in words, status)

    def same(self, shown: str, now: str) -> bool:
        if self.varies:
            return True
        return self.stable(shown) == self.stable(now)

    def stable(self, text: str) -> str:
        """The part of an output that must not change."""
        if not self.numbers_vary:
            return text
        text = re.sub(r"\d+(?:[.,]\d+)*", "0", text)
        # What is aligned with a number moves with it.
        return re.sub(r"([ \-=─━#█])\1*", r"\1", re.sub(r" *\n", "\n", text))


def run(command: str, status: int) -> str:
    """What a command writes, free of where the checkout is."""
    environment = {name: value for name, value in os.environ.items() if not CONFIGURES.match(name)}
    environment["PATH"] = f"{ROOT / '.venv/bin'}:{ROOT / 'target/release'}:{environment['PATH']}"
    environment |= {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ExampleError(f"did not end within {TIMEOUT_S} s") from error
    if done.returncode != status:
        raise ExampleError(f"exit status {done.returncode}, expected {status}\n{done.stdout}{done.stderr}".rstrip())
    lines = [line.rstrip() for line in done.stdout.replace(f"{ROOT}/", "").splitlines()]
    return "\n".join(lines).strip("\n") + "\n"


def renewed(document: Path, problems: list[str], check: bool) -> str:
    """The text of a document with its outputs renewed; with `check`, those that are no longer the same are problems."""
    text = document.read_text()
    name = document.relative_to(ROOT) if document.is_relative_to(ROOT) else document

    def renew(example: re.Match[str]) -> str:
        command = " ".join(example["command"].split())
        try:
            stability = Stability.parse(example["how"])
            now = run(command, stability.status)
            if example["fence"] in now:
                raise ExampleError(f"the output contains its own fence, {example['fence']}: use a longer one")
        except ExampleError as error:
            problems.append(f"{name}: `{command}`: {error}")
            return example[0]
        if not check:
            print(f"{name}: {command}", flush=True)
        elif not stability.same(example["body"], now):
            before, after = (stability.stable(body).splitlines() for body in (example["body"], now))
            change = "\n".join(difflib.unified_diff(before, after, "shown", "now", lineterm=""))
            problems.append(f"{name}: `{command}` writes something else now\n{change}")
        head = example[0][: example.start("body") - example.start()]
        return f"{head}{now}{example['fence']}"

    markers = len(MARKER.findall(text))
    found = len(EXAMPLE.findall(text))
    if markers != found:
        problems.append(f"{name}: {markers - found} of {markers} `<!-- output` comments stand before no fenced block")
    return EXAMPLE.sub(renew, text)


def main() -> int:
    parser = argparse.ArgumentParser(description="Renew or check the outputs shown in the documents.")
    parser.add_argument("documents", nargs="*", type=Path, help="default: README.md and all of docs/")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if an output is out of date")
    arguments = parser.parse_args()
    documents = arguments.documents or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    problems: list[str] = []
    for document in documents:
        text = renewed(document.resolve(), problems, arguments.check)
        if not arguments.check and text != document.read_text():
            document.write_text(text)
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
