"""The out-of-memory error by itself names the cause, and no other: seven staged programs, each with its whole text."""

from __future__ import annotations

import re
import textwrap

import pytest

from conftest import FREE_THREADED, RunScript

pytestmark = [pytest.mark.pressure, pytest.mark.scenario(17)]

# What the tests' server has frozen; without a GIL the error cannot tell that it holds nothing.
PLAIN = (
    ("gc.unfreeze()\n" if FREE_THREADED else "")
    + """
def show(work):
    try:
        work()
    except torch.OutOfMemoryError as error:
        print(error)

def garbage():
    for _ in range(60):
        make_garbage()
"""
)

RECORDED = PLAIN + "memory._record_memory_history()\n"

both = pytest.mark.parametrize("stage", [PLAIN, RECORDED], ids=["plain", "recorded"])

BLOCK = r"\S*/tests/python/pressure_tools\.py:\d+ \(block\)"
"""Where the function `block` of pressure_tools.py allocates."""

COLLECTED = r"Python GC ran: \d young, \d+ full; 0 bytes reclaimed in \d+ ms\."
RECORD = r"record history: torch\.spyre\.memory\._record_memory_history\(\)\."


def head(asked: str, free: str, largest: str | None = None, capacity: str = "64.00 MiB") -> str:
    """CUDA's first sentence."""
    return re.escape(
        f"spyre out of memory. Tried to allocate {asked}. Device 0 has a total capacity of {capacity} of which {free} "
        f"is free, the largest free block {largest or free}."
    )


def holders(stage: str, *named: str) -> list[str]:
    """The last sentence, where history is recorded."""
    return [f"Largest holders: {'; '.join(named)}\\."] if stage is RECORDED else []


def check(text: str, *sentences: str) -> None:
    """The whole text is these sentences."""
    assert re.fullmatch(" ".join(sentences) + "\n", text), text


@both
def test_dead_cycles_with_the_policy_off(fork_script: RunScript, stage: str) -> None:
    script = """
    memory.set_pressure_policy(gc="off")
    garbage()
    show(lambda: block(8 * MIB))
    """
    check(
        fork_script(stage + textwrap.dedent(script)).check(),
        head("8.00 MiB", "4.00 MiB"),
        r"Python GC did not run: the GC policy is off; "
        r"see torch\.spyre\.memory\.set_pressure_policy\(gc=\"always\"\)\.",
        r"60\.00 MiB is held only by dead reference cycles, by \S*Node\.",
        *holders(stage, rf"60\.00 MiB in 60 blocks at {BLOCK}"),
    )


@both
def test_held_traceback(fork_script: RunScript, stage: str) -> None:
    script = """
    def fail():
        batch = [block() for _ in range(60)]
        raise ValueError(len(batch))

    failures = []
    try:
        fail()
    except ValueError as error:
        failures.append(error)
    show(lambda: block(8 * MIB))
    failures.clear()
    block(8 * MIB)
    """
    check(
        fork_script(stage + textwrap.dedent(script)).check(),
        head("8.00 MiB", "4.00 MiB"),
        COLLECTED,
        r"A live traceback holds 60\.00 MiB: 60\.00 MiB in the locals of fail \(<script>:\d+\); it is free when the "
        r"exception is\.",
        *holders(stage, rf"60\.00 MiB in 60 blocks at {BLOCK}"),
    )


@both
def test_frozen_garbage(fork_script: RunScript, stage: str) -> None:
    script = """
    garbage()
    gc.freeze()
    show(lambda: block(8 * MIB))
    gc.unfreeze()
    block(8 * MIB)
    """
    held = (
        r"Objects frozen by gc\.freeze\(\) are never collected; see gc\.unfreeze\(\)\."
        if FREE_THREADED
        else r"60\.00 MiB is held only by garbage that gc\.freeze\(\) keeps from being collected; "
        r"see gc\.unfreeze\(\)\."
    )
    check(
        fork_script(stage + textwrap.dedent(script)).check(),
        head("8.00 MiB", "4.00 MiB"),
        COLLECTED,
        held,
        *holders(stage, rf"60\.00 MiB in 60 blocks at {BLOCK}"),
    )


@both
def test_fragmentation(fork_script: RunScript, stage: str) -> None:
    script = """
    def pin():
        return block(4 * MIB)

    parts = [block(28 * MIB), pin(), block(28 * MIB), block(4 * MIB)]
    parts[0] = parts[2] = None
    show(lambda: block(32 * MIB))
    parts[1] = None
    block(32 * MIB)
    """
    pinned = "A block of 4\\.00 MiB{} lies between free ones of 28\\.00 MiB and 28\\.00 MiB\\."
    check(
        fork_script(stage + textwrap.dedent(script)).check(),
        head("32.00 MiB", "56.00 MiB", "28.00 MiB"),
        COLLECTED,
        r"The memory is fragmented: enough is free, but no block fits\. It is in 2 pieces\.",
        pinned.format(f", allocated at {BLOCK},") if stage is RECORDED else pinned.format("") + f" To see .* {RECORD}",
        *holders(stage, rf"8\.00 MiB in 2 blocks at {BLOCK}"),
    )


def test_above_the_largest_region(fork_script: RunScript) -> None:
    script = """
    kept = block(MIB)
    show(lambda: block(16 * MIB))
    """
    check(
        fork_script(PLAIN + textwrap.dedent(script), env={"FLEX_DEVICE": "PF"}).check(),
        head("16.00 MiB", "53.86 MiB", "9.14 MiB", "54.86 MiB"),
        r"The request is above 9\.14 MiB, the largest region of the device; no collection could help\.",
    )


@both
def test_one_giant_batch(fork_script: RunScript, stage: str) -> None:
    script = """
    def load_batch():
        return torch.empty(62, MIB, dtype=torch.uint8, device="spyre")

    weights = [block() for _ in range(4)]
    show(load_batch)
    """
    where = r", at <script>:\d+ \(load_batch\)" if stage is RECORDED else ""
    check(
        fork_script(stage + textwrap.dedent(script)).check(),
        head("62.00 MiB", "60.00 MiB"),
        COLLECTED,
        rf"The request alone is 96 % of the device, 62 times the largest live block of 1\.00 MiB{where}: "
        r"a smaller batch needs less\.",
        *holders(stage, rf"4\.00 MiB in 4 blocks at {BLOCK}"),
    )


LEAK = """
losses = []

def step():
    batch = torch.ones(MIB // 4, device="spyre")
    loss = batch * 2
    del batch
    losses.append(loss)

def train():
    while True:
        step()

show(train)
"""


def test_leak_growing_with_each_step(fork_script: RunScript) -> None:
    check(
        fork_script(RECORDED + LEAK).check(),
        head("1.00 MiB", "0 bytes"),
        COLLECTED,
        r"6[34]\.00 MiB in 6[34] blocks allocated at <script>:\d+ \(step\) came steadily within \d+\.\d s, "
        r"\d+\.\d\d \w+ per second, and is still alive: something may keep a result of each step\.",
        r"Largest holders: 6[34]\.00 MiB in 6[34] blocks at <script>:\d+ \(step\)\.",
    )


def test_what_to_do_where_nothing_is_known(fork_script: RunScript) -> None:
    """The same leak, unrecorded."""
    check(
        fork_script(PLAIN + LEAK).check(),
        head("1.00 MiB", "0 bytes"),
        COLLECTED,
        f"To see where the memory went, {RECORD}",
    )


def test_what_is_loaded_at_once_is_no_leak(fork_script: RunScript) -> None:
    """Weights come before all else, and their place is named as the largest holder only.

    What is recorded is the time: what comes after the weights takes a hundred times as long.
    """
    script = """
    def load():
        return [torch.ones(MIB // 4, device="spyre") * 2 for _ in range(40)]

    def activations():
        small = torch.ones(4, device="spyre")
        kept = []
        for _ in range(40):
            for _ in range(200):
                small * 2
            kept.append(block())

    weights = load()
    show(activations)
    """
    text = fork_script(RECORDED + textwrap.dedent(script)).check()
    assert re.search(r"Largest holders: 40\.00 MiB in 40 blocks at <script>:\d+ \(<listcomp>|load\)", text), text
    assert "steadily" not in text
