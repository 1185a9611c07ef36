"""Counting the instructions of a part of a Python program, with callgrind.

Times of a microsecond say little on a machine that does other work; instructions are the same in every run. A script
calls `counted` of itself: it is run again under valgrind, and there `Switch.count` switches the counters on around what
is to be counted, by a few lines of C that tell valgrind so. Needs valgrind with its headers and a C compiler.
"""

import ctypes
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

SOURCE = """\
#include <valgrind/callgrind.h>
void counting_on(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; CALLGRIND_TOGGLE_COLLECT; }
void counting_off(const char *name) {
    CALLGRIND_TOGGLE_COLLECT; CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION;
}
"""

LIBRARY = "CALLGRIND_SWITCH"
"""The environment variable that names the compiled switch, where the script runs under valgrind."""

SHORT, LONG = 50, 500
"""Calls of two passes: their difference leaves out what the first calls and the switch itself cost."""


class Switch:
    """Counts, in the process that runs under valgrind."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ[LIBRARY])

    def count(self, name: str, repeat: Callable[[int], object]) -> None:
        """Counts the instructions of `repeat(n)` under a name, in two passes of different length."""
        for calls in (SHORT, LONG):
            self._library.counting_on()
            repeat(calls)
            self._library.counting_off(f"{name} {calls}".encode())


def is_counting() -> bool:
    """Whether this process runs under valgrind, for `counted`."""
    return LIBRARY in os.environ


def counted(script: str, *arguments: str) -> dict[str, float]:
    """Runs a script under valgrind; the instructions of one call, by the names that it counted under.

    Ends the program with valgrind's own words if there are none.
    """
    with tempfile.TemporaryDirectory() as scratch:
        source, library = Path(scratch) / "switch.c", Path(scratch) / "switch.so"
        source.write_text(SOURCE)
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", source, "-o", library], check=True)
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"]
        command += [f"--callgrind-out-file={scratch}/out", sys.executable, script, *arguments]
        environment = {**os.environ, LIBRARY: str(library), "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        found = _totals(Path(scratch))
    names = {name.rpartition(" ")[0] for name in found}
    if done.returncode or not names:
        sys.exit(f"error: callgrind gave no counts for {script}:\n{done.stderr[-2000:]}")
    return {name: (found[f"{name} {LONG}"] - found[f"{name} {SHORT}"]) / (LONG - SHORT) for name in names}


def _totals(folder: Path) -> dict[str, int]:
    found = {}
    for file in folder.glob("out.*"):
        text = file.read_text(errors="replace")
        name, total = re.search(r"Client Request: (.+)", text), re.search(r"^totals: (\d+)", text, re.MULTILINE)
        if name and total:
            found[name[1]] = int(total[1])
    return found
