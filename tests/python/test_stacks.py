"""The Python stack of an allocation, taken on a thread that is detached; crates/python-stacks has tests of every form a
stack has, on every interpreter."""

from __future__ import annotations

import sys
import threading
from types import FrameType

import pytest
import torch

from conftest import RunScript
from torch_spyre import _C

testing = _C.testing

DETACHED = (False, True)


@pytest.fixture(autouse=True)
def enabled() -> None:
    testing.enable_stacks()


def shown() -> list[tuple[str, str, int]]:
    """The caller's stack as CPython shows it, innermost first."""
    frames: list[tuple[str, str, int]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(frames) < 64:
        frames.append((frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return frames


def test_read_from_memory() -> None:
    assert _C.stacks_status()["mode"] == "direct"


@pytest.mark.parametrize("attached", DETACHED)
def test_the_caller_s_stack(attached: bool) -> None:
    site, expected = testing.capture_stack(attached), shown()
    assert testing.stack_frames(site) == expected


def test_equal_stacks_are_one_site_and_kept_once() -> None:
    sites, kept = set(), []
    for _ in range(3):
        sites.add(testing.capture_stack(False))
        kept.append(_C.stacks_status()["sites"])
    assert len(sites) == len(set(kept)) == 1
    assert testing.capture_stack(False) not in sites, "another line"


def test_each_thread_has_its_own() -> None:
    found: list[list[tuple[str, str, int]]] = []

    def run() -> None:
        found.append(testing.stack_frames(testing.capture_stack(False)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert [name for _, name, _ in found[0]][:2] == ["run", "run"]
    assert "test_each_thread_has_its_own" not in [name for _, name, _ in found[0]]


def test_a_node_in_python_runs_on_the_stack_of_autograd_s_worker() -> None:
    found: list[list[str]] = []

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, value: torch.Tensor) -> torch.Tensor:
            return value * 2

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            found.append([name for _, name, _ in testing.stack_frames(testing.capture_stack(False))])
            return gradient * 2

    Node.apply(torch.ones(4, device="spyre", requires_grad=True)).sum().backward()
    assert found[0][0] == "backward"
    assert "test_a_node_in_python_runs_on_the_stack_of_autograd_s_worker" not in found[0]


def test_nothing_is_read_at_exit(run_script: RunScript) -> None:
    """A detached daemon thread goes on taking stacks while the interpreter frees its threads' states."""
    script = """
        import threading
        from torch_spyre import _C
        _C.testing.enable_stacks()
        started = threading.Event()

        def run():
            started.set()
            _C.testing.time_captures(1 << 31)

        for _ in range(3):
            threading.Thread(target=run, daemon=True).start()
        started.wait()
        """
    run_script(script).check()


def test_no_stack_is_taken_before_all_forms_were_compared_and_an_interrupt_leaves_that_to_do(
    run_script: RunScript,
) -> None:
    script = """
        import sys
        from torch_spyre import _C

        def interrupt(frame, event, argument):
            if frame.f_code.co_name == "coroutine":  # The last form that is compared.
                print(_C.stacks_status()["mode"], _C.testing.capture_stack(True))
                raise KeyboardInterrupt

        sys.settrace(interrupt)
        try:
            _C.testing.enable_stacks()
        except KeyboardInterrupt:
            sys.settrace(None)
        print(_C.stacks_status()["mode"], _C.testing.capture_stack(True))
        _C.testing.enable_stacks()
        print(_C.stacks_status()["mode"], _C.testing.capture_stack(True) > 0)
        """
    assert run_script(script).check().splitlines() == ["off 0", "off 0", "direct True"]
