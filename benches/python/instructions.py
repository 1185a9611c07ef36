"""Count the instructions of a small operator on `spyre` and on the CPU, with callgrind.

Times of a microsecond say little on a machine that does other work; instructions are the same in every run. The
counters are switched on around the calls alone, by a few lines of C that tell valgrind so. Needs valgrind with its
headers and a C compiler.

    instructions.py             a + b of 4 x 4 floats, called from Python
    instructions.py EXPRESSION  another one, of `a`, `b` and `torch`
"""

import ctypes
import gc
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CALLS = 500
WARM_CALLS = 50

SWITCH = """\
#include <valgrind/callgrind.h>
void counting_on(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; CALLGRIND_TOGGLE_COLLECT; }
void counting_off(const char *name) {
    CALLGRIND_TOGGLE_COLLECT; CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION;
}
"""


def measured(library: str, expression: str) -> None:
    """Run under valgrind: make the calls, counted, on each device."""
    os.environ["TORCH_SPYRE_ALLOC_CONF"] = "device_memory:256MiB"
    import torch

    switch = ctypes.CDLL(library)
    torch.set_num_threads(1)
    gc.disable()
    code = compile(expression, "expression", "eval")
    for device in ("cpu", "spyre"):
        names = {"torch": torch, "a": torch.ones(4, 4, device=device), "b": torch.ones(4, 4, device=device)}
        for calls in (WARM_CALLS, CALLS):
            switch.counting_on()
            for _ in range(calls):
                eval(code, names)
            switch.counting_off(f"{device} {calls}".encode())


def counts(folder: Path) -> dict[str, int]:
    found = {}
    for file in folder.glob("out.*"):
        text = file.read_text(errors="replace")
        name, total = re.search(r"Client Request: (.+)", text), re.search(r"^totals: (\d+)", text, re.MULTILINE)
        if name and total:
            found[name[1]] = int(total[1])
    return found


def main() -> None:
    expression = sys.argv[1] if len(sys.argv) > 1 else "a + b"
    with tempfile.TemporaryDirectory() as scratch:
        source, library = Path(scratch) / "switch.c", Path(scratch) / "switch.so"
        source.write_text(SWITCH)
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", source, "-o", library], check=True)
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"]
        command += [f"--callgrind-out-file={scratch}/out", sys.executable, __file__, "--measured", str(library)]
        done = subprocess.run([*command, expression], capture_output=True, text=True, check=False)
        found = counts(Path(scratch))
        wanted = {f"{device} {calls}" for device in ("cpu", "spyre") for calls in (WARM_CALLS, CALLS)}
        if done.returncode or not wanted <= found.keys():
            sys.exit(f"error: callgrind gave no counts for {expression!r}:\n{done.stderr[-2000:]}")
    # The difference leaves out what the first calls and the switch itself cost.
    spyre, cpu = (
        (found[f"{device} {CALLS}"] - found[f"{device} {WARM_CALLS}"]) / (CALLS - WARM_CALLS)
        for device in ("spyre", "cpu")
    )
    print(f"{expression}: {spyre:.0f} instructions on spyre, {cpu:.0f} on the CPU, ratio {spyre / cpu:.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measured"]:
        measured(*sys.argv[2:])
    else:
        main()
