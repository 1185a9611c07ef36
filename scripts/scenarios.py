"""Checks the table of pressure scenarios in docs/verification.md: that each of the 23 is claimed by a Python test, that
the table names exactly those tests, and that the native tests it names exist. `--write` writes the Python ones into it.

A test claims scenarios with `@pytest.mark.scenario(5, 23)`, a module with its `pytestmark`.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "verification.md"
NUMBERS = range(1, 24)
ROW = re.compile(r"^\| (\d+) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)


def claimed(mark: ast.expr) -> set[int]:
    """The numbers in an expression that is or contains `pytest.mark.scenario(…)`."""
    numbers: set[int] = set()
    for node in ast.walk(mark):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "scenario":
            numbers.update(ast.literal_eval(argument) for argument in node.args)
    return numbers


def python_tests() -> dict[int, dict[str, list[str]]]:
    """For each scenario the tests that claim it, by file."""
    found: dict[int, dict[str, list[str]]] = {number: {} for number in NUMBERS}
    for path in sorted((ROOT / "tests" / "python").rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        of_module: set[int] = set()
        for node in tree.body:
            if isinstance(node, ast.Assign) and any(getattr(name, "id", "") == "pytestmark" for name in node.targets):
                of_module |= claimed(node.value)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for number in of_module.union(*map(claimed, node.decorator_list)):
                    found[number].setdefault(path.stem, []).append(node.name.removeprefix("test_"))
    return found


def native_tests() -> set[str]:
    """The names of all functions and C++ tests under crates."""
    names: set[str] = set()
    for path in (ROOT / "crates").rglob("*"):
        if path.suffix in (".rs", ".cpp"):
            names.update(re.findall(r"\b(?:fn |TEST\()(\w+)", path.read_text()))
    return names


def cell(files: dict[str, list[str]]) -> str:
    return "; ".join(f"{file}: {', '.join(f'`{name}`' for name in names)}" for file, names in files.items())


def main() -> int:
    python, native, text = python_tests(), native_tests(), DOCUMENT.read_text()
    written = ROW.sub(lambda row: f"| {row[1]} | {row[2]} | {cell(python[int(row[1])])} | {row[4]} |", text)
    problems = [f"scenario {number} is claimed by no Python test" for number in NUMBERS if not python[number]]
    rows = ROW.findall(text)
    if [int(row[0]) for row in rows] != list(NUMBERS):
        problems.append(f"{DOCUMENT.name} must have one row for each scenario, in order")
    for number, _, _, tests in rows:
        unknown = [name for name in re.findall(r"`(\w+)`", tests) if name not in native]
        problems += [f"scenario {number}: crates has no test named {name}" for name in unknown]
    if written != text and "--write" in sys.argv:
        DOCUMENT.write_text(written)
    elif written != text:
        problems.append(f"the Python tests in {DOCUMENT.name} are not those that claim the scenarios (--write them)")
    print(*problems, sep="\n", end="\n" if problems else "")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
