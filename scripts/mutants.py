"""Break the contract on purpose, one rule at a time, and show that each break is caught by a named check.

    scripts/mutants.py                     all of tests/mutants/*.toml
    scripts/mutants.py --only NAME         those whose name has a match for NAME, a regular expression
    scripts/mutants.py --check-applies     quickly: every text to replace is there once, every named check exists

Works in a copy of the tree, target/mutants/tree, whose builds are kept. Each check must first pass on the copy as it
is. Then each mutant is applied, built (one that does not compile is an error of its entry), checked and undone. A check
that does not end in time counts as caught, and is reported as a hang. Exit status 1 if a mutant survives or an entry is
wrong. Writes target/mutants/summary.json. Runs at the same time take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from environment import locked

ROOT = Path(__file__).resolve().parent.parent
ENTRIES = ROOT / "tests" / "mutants"
WORK = ROOT / "target" / "mutants"
TREE = WORK / "tree"
LOG = WORK / "log"

BUILD_SECONDS = 1200
CHECK_SECONDS = 150


class EntryError(Exception):
    """An entry that says something wrong."""


@dataclass(frozen=True)
class Check:
    """A named check: `test:TARGET:NAME`, `unit:NAME`, `loom:NAME` and `shuttle:NAME` of flex, or `pytest:NAME`."""

    kind: str
    name: str
    target: str = ""

    @classmethod
    def parse(cls, text: str) -> Check:
        kind, *rest = text.split(":", 2 if text.startswith("test:") else 1)
        if kind == "test" and len(rest) == 2:
            return cls(kind, rest[1], rest[0])
        if kind in ("unit", "loom", "shuttle", "pytest") and len(rest) == 1:
            return cls(kind, rest[0])
        raise EntryError(f"{text!r} names no check")

    def __str__(self) -> str:
        return ":".join(part for part in (self.kind, self.target, self.name) if part)

    def sources(self, root: Path) -> list[Path]:
        """The files that define it: one, if all is well."""
        if self.kind == "pytest":
            files, pattern = root.glob("tests/python/**/test_*.py"), rf"^def {self.name}\("
        else:
            files, pattern = root.glob("crates/flex/**/*.rs"), rf"fn {self.name.split('::')[-1]}\("
        return [file for file in files if re.search(pattern, file.read_text(), re.MULTILINE)]

    def environment(self) -> dict[str, str]:
        variables = {**os.environ, "CARGO_TERM_COLOR": "never"}
        # Incremental code is inlined less, which takes more stack than the 32 KiB that loom gives a model.
        variables["CARGO_INCREMENTAL"] = "0" if self.kind in ("loom", "shuttle") else "1"
        variables["FLEX_TEST_PATIENCE_SECONDS"] = "8"
        variables.pop("CARGO_TARGET_DIR", None)
        if self.kind in ("loom", "shuttle"):
            variables["RUSTFLAGS"] = f"--cfg {self.kind}"
        if self.kind == "pytest":
            variables["PYTHONPATH"] = str(TREE / "target/checked/python")
        return variables

    def cargo(self) -> list[str]:
        command = ["cargo", "test", "--package", "flex"]
        if self.kind in ("loom", "shuttle"):
            command += ["--profile", "checked", "--target-dir", f"target/{self.kind}"]
        return [*command, *(("--test", self.target) if self.kind == "test" else ("--lib",))]

    def build(self) -> bool:
        command = ["scripts/extension.sh", "checked"] if self.kind == "pytest" else [*self.cargo(), "--no-run"]
        return run(command, self.environment(), BUILD_SECONDS) == "passed"

    def check(self) -> str:
        """`passed`, `failed` or `hang`."""
        if self.kind == "pytest":
            (source,) = self.sources(TREE)
            package = TREE / "target/checked/python"
            options = ["-q", "-x", "-p", "no:cacheprovider", "-o", f"pythonpath={package}"]
            command = [".venv/bin/python", "-m", "pytest", f"{source.relative_to(TREE)}::{self.name}", *options]
        else:
            command = [*self.cargo(), "--", "--exact", self.name]
        outcome = run(command, self.environment(), CHECK_SECONDS)
        if outcome == "passed" and not re.search(r"\b[1-9]\d* passed", last_output()):
            raise EntryError(f"{self} runs no test")
        return outcome


@dataclass(frozen=True)
class Edit:
    """One text to replace. `file` may be a pattern, for code that may move."""

    file: str
    find: str
    replace: str

    def path(self, root: Path) -> Path:
        """The file with the text, which must occur once."""
        counts = {path: path.read_text().count(self.find) for path in root.glob(self.file)}
        if (count := sum(counts.values())) != 1:
            raise EntryError(f"the text to replace occurs {count} times in {self.file}:\n{self.find}")
        return next(path for path, count in counts.items() if count)


@dataclass(frozen=True)
class Mutant:
    """One way to break the contract."""

    name: str
    breaks: str
    edits: tuple[Edit, ...]
    checks: tuple[Check, ...]
    before_python: str
    """From this version of Python on the rule needs no keeping."""

    @property
    def is_void(self) -> bool:
        return bool(self.before_python) and sys.version_info >= tuple(map(int, self.before_python.split(".")))


def load(only: str) -> list[Mutant]:
    mutants = []
    for file in sorted(ENTRIES.glob("*.toml")):
        for entry in tomllib.loads(file.read_text())["mutant"]:
            edits = tuple(Edit(**edit) for edit in entry["edit"])
            checks = tuple(Check.parse(text) for text in entry["caught-by"])
            mutants.append(Mutant(entry["name"], entry["breaks"], edits, checks, entry.get("before-python", "")))
    names = [mutant.name for mutant in mutants]
    if len(set(names)) != len(names):
        raise EntryError("two mutants have the same name")
    return [mutant for mutant in mutants if re.search(only, mutant.name)]


def last_output() -> str:
    return LOG.read_text(errors="replace")


def run(command: list[str], environment: dict[str, str], seconds: float) -> str:
    """Run a command in the copy, with its output in the log; whatever it started ends with it."""
    with LOG.open("w") as log:
        process = subprocess.Popen(
            command, cwd=TREE, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            return "passed" if process.wait(seconds) == 0 else "failed"
        except subprocess.TimeoutExpired:
            return "hang"
        finally:
            # Also when it has ended by itself: a test that failed may have left processes behind.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def copy_tree() -> None:
    """Bring the copy up to date. Files that are the same stay untouched, so that cargo builds only what changed."""
    TREE.mkdir(parents=True, exist_ok=True)
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    wanted = {Path(name) for name in listing.split("\0") if name and (ROOT / name).is_file()}
    for name in wanted:
        source, copy = ROOT / name, TREE / name
        if not copy.exists() or source.read_bytes() != copy.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
            copy.chmod(source.stat().st_mode)
    for folder in ("crates", "python", "tests"):
        for copy in (TREE / folder).rglob("*"):
            if copy.is_file() and copy.suffix in (".rs", ".py", ".toml") and copy.relative_to(TREE) not in wanted:
                copy.unlink()
    environment = TREE / ".venv"
    if not environment.is_symlink():
        environment.symlink_to(ROOT / ".venv")


def check_entries(mutants: list[Mutant]) -> list[str]:
    """What is wrong with the entries, without building anything."""
    problems = []
    for mutant in mutants:
        for edit in mutant.edits:
            try:
                edit.path(ROOT)
            except EntryError as error:
                problems.append(f"{mutant.name}: {error}")
        for check in mutant.checks:
            if not check.sources(ROOT) or (check.kind == "pytest" and len(check.sources(ROOT)) != 1):
                problems.append(f"{mutant.name}: there is no check {check}")
        if not mutant.checks:
            problems.append(f"{mutant.name}: no check is named")
    return problems


def check_unmutated(mutants: list[Mutant]) -> list[str]:
    """The checks that fail on the copy as it is."""
    problems = []
    for check in dict.fromkeys(check for mutant in mutants for check in mutant.checks):
        began = time.monotonic()
        outcome = check.check() if check.build() else "does not build"
        print(f"  {outcome:<8} {check} ({time.monotonic() - began:.0f} s)", flush=True)
        if outcome != "passed":
            problems.append(f"unmutated, {check}: {outcome}\n{last_output()[-3000:]}")
    return problems


def try_mutant(mutant: Mutant) -> dict[str, object]:
    """Apply one mutant, run its checks until one catches it, and undo it."""
    began = time.monotonic()
    originals = {path: path.read_text() for path in (edit.path(TREE) for edit in mutant.edits)}
    result: dict[str, object] = {"name": mutant.name, "breaks": mutant.breaks, "outcome": "survived", "caught_by": None}
    try:
        for edit in mutant.edits:
            path = edit.path(TREE)
            path.write_text(path.read_text().replace(edit.find, edit.replace))
        for check in mutant.checks:
            if not check.build():
                print(last_output()[-3000:])
                result["outcome"] = "does not compile"
                break
            if (outcome := check.check()) != "passed":
                result |= {"outcome": outcome, "caught_by": str(check)}
                break
    finally:
        for path, text in originals.items():
            path.write_text(text)
    return result | {"seconds": round(time.monotonic() - began, 1)}


def try_all(mutants: list[Mutant]) -> list[dict[str, object]]:
    results = []
    for mutant in mutants:
        result = try_mutant(mutant)
        results.append(result)
        caught = result["caught_by"] or "-"
        print(f"  {result['outcome']:<8} {mutant.name:<42} {caught} ({result['seconds']} s)", flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description="Break the contract on purpose and see that it is noticed.")
    parser.add_argument("--only", default="", help="mutants whose name has a match for this regular expression")
    parser.add_argument("--check-applies", action="store_true", help="only look whether the entries fit the sources")
    given = parser.parse_args()
    mutants = load(given.only)
    if problems := check_entries(mutants) or ([] if mutants else [f"no mutant is named like {given.only!r}"]):
        print("\n".join(problems), file=sys.stderr)
        return 1
    if given.check_applies:
        print(f"{len(mutants)} mutants apply")
        return 0
    with locked(WORK / "lock", "another run of the mutants"):
        return run_mutants(mutants)


def run_mutants(mutants: list[Mutant]) -> int:
    """Try the mutants in the copy, and write the summary. The exit status."""
    copy_tree()
    for mutant in mutants:
        if mutant.is_void:
            print(f"  void from Python {mutant.before_python} on: {mutant.name}", flush=True)
    mutants = [mutant for mutant in mutants if not mutant.is_void]
    print("Unmutated:", flush=True)
    if problems := check_unmutated(mutants):
        print("\n".join(problems), file=sys.stderr)
        return 1
    print("Mutants:", flush=True)
    results = try_all(mutants)
    missed = [result["name"] for result in results if result["caught_by"] is None]
    (WORK / "summary.json").write_text(json.dumps({"mutants": results, "missed": missed}, indent=1) + "\n")
    print(f"{len(results) - len(missed)} of {len(results)} mutants caught" + (f"; NOT: {missed}" if missed else ""))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
