"""Which thread runs finalizers: in a program with one Python thread that one, before and after a backward pass. (Tk, Qt
and sqlite objects need that.) On free-threaded builds the collector thread does, for a thread that arrives detached."""

from __future__ import annotations

import threading

import pytest
import torch

from conftest import RunScript
from pressure_tools import MIB, Counters, Node, another_thread, block, fill_with_garbage, testing

pytestmark = [pytest.mark.pressure, pytest.mark.scenario(22)]


class Watch:
    """Who finalizes."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def fill(self) -> None:
        """Fills the device with garbage, some of it watched."""
        threads = self.threads

        class Owner(Node):
            def __del__(self) -> None:
                threads.append(threading.get_ident())

        threads.clear()
        fill_with_garbage()
        Owner()

    def was_requester(self) -> bool:
        (thread,) = self.threads
        return thread == threading.get_ident()


def backward() -> None:
    torch.ones(4, device="spyre", requires_grad=True).square().sum().backward()


@pytest.mark.parametrize("after_backward", [False, True])
def test_one_python_thread(fork_script: RunScript, after_backward: bool) -> None:
    """Autograd's workers are thread states that run no frame: they do not count. In a process of its own: other tests
    leave threads behind."""
    script = f"after_backward = {after_backward}"
    script += """
finalized_on = []
class Owner(Node):
    def __del__(self):
        finalized_on.append(threading.get_ident())
if after_backward:
    torch.ones(4, device="spyre", requires_grad=True).square().sum().backward()
counters = Counters()
for _ in range(3):  # Also when a collector thread exists already.
    fill_with_garbage()
    Owner()
    block(8 * MIB)
started = [thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)]
assert started == [threading.current_thread()]
counters.check_all_rescued()
assert counters["rescued"] >= 3
assert finalized_on == [threading.get_ident()] * 3
print("on the requester's")
"""
    assert fork_script(script).check() == "on the requester's\n"


def test_first_request_of_a_program(fork_script: RunScript) -> None:
    """Before any backward and before there is a collector thread, and after."""
    script = """
    import torch.autograd
    for turn in range(2):
        finalizers = []
        class Owner(Node):
            def __del__(self):
                finalizers.append(threading.get_ident())
        fill_with_garbage()
        Owner()
        block(8 * MIB)
        print([ident == threading.get_ident() for ident in finalizers])
        torch.ones(4, device="spyre", requires_grad=True).square().sum().backward()
    counters = memory.pressure_stats()
    assert counters["events"] == counters["rescued"] == 2, counters
    """
    assert fork_script(script).check() == "[True]\n" * 2


def test_attached_thread_collects_inline(counters: Counters) -> None:
    watch = Watch()
    with another_thread():
        watch.fill()
        assert testing.allocate_attached(0, 8 * MIB) is None
    assert watch.was_requester()
    counters.check_all_rescued()


def test_other_python_threads_make_the_collector_thread_collect(counters: Counters) -> None:
    watch = Watch()
    with another_thread():
        watch.fill()
        block(8 * MIB)
    assert not watch.was_requester()
    counters.check_all_rescued()
