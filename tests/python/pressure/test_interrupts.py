"""KeyboardInterrupt out of a hook or a collection: it is raised again when its own request has ended, in the main
thread, whatever SIGINT does; and it is not lost to what another request runs meanwhile."""

from __future__ import annotations

import pytest

from conftest import RunScript

pytestmark = [pytest.mark.pressure, pytest.mark.scenario(16)]


@pytest.mark.parametrize("attached", [False, True], ids=["", "attached"])
@pytest.mark.parametrize("handler", ["SIG_DFL", "SIG_IGN", "default_int_handler"])
def test_whatever_sigint_does(fork_script: RunScript, handler: str, attached: bool) -> None:
    script = f"attached, handler = {attached}, {handler!r}"
    script += """
import signal
signal.signal(signal.SIGINT, getattr(signal, handler))
cache = [block() for _ in range(64)]
def hook(_):
    cache.clear()
    raise KeyboardInterrupt
handle = memory.register_pressure_hook(hook)
try:
    made = testing.allocate_attached(0, 8 * MIB) if attached else block(8 * MIB)
    for _ in range(1000):
        pass
except KeyboardInterrupt:
    print("interrupted")
counters = memory.pressure_stats()
assert (counters["hooks.failed"], counters["rescued"], counters["failed"]) == (1, 1, 0), counters
"""
    assert fork_script(script).check() == "interrupted\n"


def test_another_request_that_ends_first_does_not_take_it(fork_script: RunScript) -> None:
    script = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
other_ended = threading.Event()
class Waits(Node):
    def __del__(self):
        # Python code of the first request, after its hook: it would swallow an interrupt.
        for _ in range(1000):
            other_ended.wait(0.01)
            if other_ended.is_set():
                break
def other():
    memory.set_pressure_policy(timeout_ms=100)
    try:
        block(60 * MIB)
    except torch.OutOfMemoryError:
        pass
    other_ended.set()
def hook(_):
    Waits()
    threading.Thread(target=other).start()
    raise KeyboardInterrupt
live = [block() for _ in range(60)]
memory.register_pressure_hook(hook)
try:
    try:
        block(8 * MIB)
    except torch.OutOfMemoryError:
        pass
    for _ in range(1000):
        pass
except KeyboardInterrupt:
    print("interrupted")
assert other_ended.wait(20)
"""
    assert fork_script(script).check() == "interrupted\n"
