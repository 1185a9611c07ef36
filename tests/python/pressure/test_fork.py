"""Forks: while another thread holds the mutex, and inside the ladder. The child gets a clear RuntimeError, what it
frees does nothing, and it ends cleanly, atexit and teardown included; the parent goes on as if nothing had been."""

from __future__ import annotations

import pytest

from conftest import RunScript

pytestmark = [pytest.mark.pressure, pytest.mark.scenario(11)]

IN_CHILD = """
import signal
def end_child(finalize=True):
    '''In a forked child: every use says why it fails, frees do nothing, and the process ends as a program does.'''
    signal.alarm(20)
    for use in (block, lambda: block(64 * MIB), lambda: held + 1, memory.memory_stats):
        try:
            use()
        except RuntimeError as error:
            assert "Cannot re-initialize spyre in forked subprocess" in str(error), error
            assert "'spawn' start method" in str(error), error
        else:
            raise AssertionError("used in a forked child")
    assert testing_is_in_bad_fork()
    tensors.clear()
    gc.collect()
    print("child", flush=True)
    if not finalize:
        os._exit(0)
    sys.exit(0)

import torch_spyre
testing_is_in_bad_fork = torch_spyre._C.is_in_bad_fork
parent = os.getpid()
held = torch.ones(4, device="spyre")
tensors = [block() for _ in range(4)]

def end_parent():
    '''In the parent: nothing was freed or lost by what the child did.'''
    assert len(tensors) == 4
    assert held.sum().item() == 4.0
    before = torch.spyre.memory_allocated()
    tensors.clear()
    assert before - torch.spyre.memory_allocated() == 4 * MIB
    for _ in range(100):
        make_garbage()
    testing.validate(0)
    counters = memory.pressure_stats()
    assert counters["failed"] == 0 and counters["events"] == counters["rescued"] > 0, counters
    print("parent", flush=True)
"""


def check(script: str, fork_script: RunScript) -> None:
    """Both processes said that all is well, the child first: the parent waits for it."""
    assert fork_script(IN_CHILD + script).check() == "child\nparent\n"


def test_while_another_thread_holds_the_mutex(fork_script: RunScript) -> None:
    """Once with frees that are pending because the mutex is taken."""
    script = """
more = []
def free_and_fork():
    more.clear()
    return fork()
for turn in range(2):
    child = testing.while_mutex_is_held(0, free_and_fork)
    if child == 0:
        end_child(finalize=turn == 0)
    assert exit_status(child) == 0
    more.extend(block() for _ in range(8))
del more[:]
end_parent()
"""
    assert fork_script(IN_CHILD + script).check() == "child\nchild\nparent\n"


def test_while_another_thread_holds_other_locks(fork_script: RunScript) -> None:
    """Those that frees, collections and the end of the process take, and those of functions that say why they fail."""
    script = """
import signal
memory._record_memory_history(max_entries=100)
def raises(function, *arguments):
    try:
        function(*arguments)
    except RuntimeError as error:
        return "Cannot re-initialize spyre in forked subprocess" in str(error)
handle = memory.register_pressure_hook(lambda event: None)
child = testing.while_locks_are_held(fork)
if child == 0:
    signal.alarm(20)
    make = Node()
    make.held = tensors[:2]
    del make, tensors[:2]
    gc.collect()
    torch_spyre._C.record_cycles(True, 1)
    Node()
    gc.collect()
    assert raises(memory.register_pressure_hook, print)
    assert raises(memory.cycle_report) and raises(memory.reset_cycle_report) and raises(memory.held_report)
    assert raises(memory._snapshot) and raises(memory.set_pressure_policy)
    assert raises(memory._history_stream)
    del handle
    end_child()
assert exit_status(child) == 0
memory._record_memory_history(enabled=None)
end_parent()
"""
    check(script, fork_script)


INSIDE = """
children = []
def fork_inside():
    if not children:
        children.append(fork())
class Forking(Node):
    def __del__(self):
        fork_inside()
def give_up_and_fork(_):
    live.clear()
    fork_inside()
def prepare(place):
    children.clear()
    fill_with_garbage()
    if place == "finalizer":
        Forking()
    elif place == "callback":
        gc.callbacks.append(callback := lambda phase, _: fork_inside())
        return lambda: gc.callbacks.remove(callback)
    else:
        gc.collect()
        while fits(MIB):
            live.append(block())
        return memory.register_pressure_hook(give_up_and_fork).remove
    return lambda: None
live = []
def press():
    try:
        block(8 * MIB)
    except RuntimeError as error:
        return str(error)
"""


@pytest.mark.parametrize("attached", [False, True], ids=["", "attached"])
@pytest.mark.scenario(6)
def test_inside_the_ladder_on_the_requesting_thread(attached: bool, fork_script: RunScript) -> None:
    """In a finalizer, in an entry of `gc.callbacks`, in a hook. The child comes out of the ladder with the error."""
    script = f"attached = {attached}"
    script += """
for place in ("finalizer", "callback", "hook"):
    end = prepare(place)
    error = testing.allocate_attached(0, 8 * MIB) if attached else press()
    if os.getpid() != parent:
        assert "fork" in error, error
        end_child(finalize=place == "finalizer")
    end()
    assert error is None, error
    assert exit_status(children[0]) == 0, place
end_parent()
"""
    assert fork_script(IN_CHILD + INSIDE + script).check() == "child\n" * 3 + "parent\n"


@pytest.mark.scenario(6)
def test_inside_the_ladder_on_the_collector_thread(fork_script: RunScript) -> None:
    """The child's only thread is the collector thread: it ends when its Python code returns."""
    script = """
with another_thread():
    for place in ("finalizer", "callback", "hook"):
        end = prepare(place)
        error = press()
        end()
        assert error is None, error
        assert exit_status(children[0]) == 0, place
print("child")  # It has no thread that could say so.
end_parent()
"""
    check(INSIDE + script, fork_script)


def test_while_another_thread_is_in_the_ladder(fork_script: RunScript) -> None:
    """The child has neither that thread nor its collection; the parent's goes on."""
    script = """
with PausedCollection("finalizer") as paused:
    fill_with_garbage()
    with running(lambda: block(8 * MIB)):
        testing.wait_for_gate(behind_foreign=True)
        child = fork()
        if child == 0:
            try:
                end_child()
            finally:
                sys.stdout.flush()
                os._exit(0 if isinstance(sys.exc_info()[1], SystemExit) else 1)
        assert exit_status(child) == 0
        paused.resume()
end_parent()
"""
    check(script, fork_script)
