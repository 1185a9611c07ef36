"""Signals that arrive during a collection. Their Python handlers run on the main thread when it next runs bytecode: in
a finalizer if that runs there, else when the request has ended. Nothing is lost either way.

The handlers are installed by the tests: interrupts may be ignored where they run. That a signal has arrived is read
from the pipe that `signal.set_wakeup_fd` writes to, at once, on whatever thread.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from conftest import RunScript
from pressure_tools import (
    KIB,
    MIB,
    Counters,
    Node,
    PausedCollection,
    another_thread,
    block,
    fill_with_garbage,
    fits,
    make_garbage,
    running,
    testing,
)

pytestmark = [pytest.mark.pressure, pytest.mark.scenario(16)]

MAIN = threading.main_thread().ident or 0


class ArrivedError(Exception):
    """What a handler raises."""


class Signals:
    """Installs handlers, sends signals, and knows when one has arrived."""

    def __init__(self, arrivals: int) -> None:
        self.arrivals = arrivals
        self.handled: list[int] = []

    def install(self, handler: Callable[[], object], number: signal.Signals = signal.SIGUSR1) -> None:
        def handle(number: int, _frame: object) -> None:
            self.handled.append(threading.get_ident())
            handler()

        signal.signal(number, handle)

    def wait(self) -> None:
        """Until a signal has arrived; its Python handler may not have run."""
        os.read(self.arrivals, 1)


@pytest.fixture
def signals() -> Iterator[Signals]:
    numbers = (signal.SIGUSR1, signal.SIGALRM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    previous = signal.set_wakeup_fd(writable)
    yield Signals(readable)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.set_wakeup_fd(previous)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
    os.close(readable)
    os.close(writable)


def garbage_that(finalizer: Callable[[], object]) -> None:
    """Fills the device with garbage, one piece of which calls `finalizer`."""

    class Finalized(Node):
        def __del__(self) -> None:
            finalizer()

    fill_with_garbage()
    Finalized()


def send_by_raise(signals: Signals) -> None:
    signal.raise_signal(signal.SIGUSR1)


def send_to_main(signals: Signals) -> None:
    signal.pthread_kill(MAIN, signal.SIGUSR1)


def send_by_timer(signals: Signals) -> None:
    signal.setitimer(signal.ITIMER_REAL, 1e-6)
    signals.wait()


senders = pytest.mark.parametrize("send", [send_by_raise, send_to_main, send_by_timer])


def fail() -> None:
    raise ArrivedError


def install_both(signals: Signals, handler: Callable[[], object]) -> None:
    signals.install(handler)
    signals.install(handler, signal.SIGALRM)


@senders
def test_handler_in_a_finalizer_allocates(
    counters: Counters, signals: Signals, send: Callable[[Signals], None]
) -> None:
    """The finalizer runs on the main thread, and the handler inside it: in the middle of the collection."""
    made: list[torch.Tensor] = []
    failures: list[str] = []

    def allocate() -> None:
        made.append(torch.ones(1000, device="spyre"))
        try:
            block(60 * MIB)
        except torch.OutOfMemoryError as error:
            failures.append(str(error))

    install_both(signals, allocate)
    room = block(64 * KIB)
    garbage_that(lambda: send(signals))
    while fits(64 * KIB):
        make_garbage(64 * KIB)
    del room
    assert testing.allocate_attached(0, 8 * MIB) is None
    assert signals.handled == [MAIN]
    assert made[0].sum().item() == 1000.0
    (text,) = failures
    assert "already inside a collection" in text
    assert counters["collections.skipped.reentrant"] == counters["failed"] == 1
    assert (counters["events"], counters["rescued"]) == (2, 1)


@senders
def test_handler_in_a_finalizer_raises(
    counters: Counters, signals: Signals, send: Callable[[Signals], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython reports what a finalizer raises; the collection goes on."""
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(report.exc_type))
    install_both(signals, fail)
    garbage_that(lambda: send(signals))
    assert testing.allocate_attached(0, 8 * MIB) is None
    assert signals.handled == [MAIN]
    assert reported == [ArrivedError]
    counters.check_all_rescued()


@senders
def test_handler_allocates_after_the_request(
    counters: Counters, signals: Signals, send: Callable[[Signals], None]
) -> None:
    """The collector thread is in a finalizer when the signal arrives; the main thread waits in the allocator. Its
    handler runs when the request has ended, and may be under pressure like any other code."""
    made: list[int] = []
    install_both(signals, lambda: made.append(block(48 * MIB).numel()))
    with another_thread():
        garbage_that(lambda: send(signals))
        block(8 * MIB)
    assert signals.handled == [MAIN]
    assert made == [48 * MIB]
    counters.check_all_rescued()


@senders
def test_handler_raises_after_the_request(
    counters: Counters, signals: Signals, send: Callable[[Signals], None]
) -> None:
    """The exception comes out of the program's code; the memory that was found goes back."""
    install_both(signals, fail)
    before = torch.spyre.memory_allocated()
    with another_thread():
        garbage_that(lambda: send(signals))
        with pytest.raises(ArrivedError):
            block(8 * MIB).fill_(0)
    assert signals.handled == [MAIN]
    counters.check_all_rescued()
    assert counters["events"] == 1
    gc.collect()
    assert torch.spyre.memory_allocated() == before


@pytest.mark.parametrize("attached", [False, True], ids=["", "attached"])
def test_signal_while_the_main_thread_waits_for_a_foreign_collection(
    counters: Counters, signals: Signals, attached: bool
) -> None:
    signals.install(fail)

    def send_when_it_waits() -> None:
        try:
            testing.wait_for_gate(behind_foreign=True)
            signal.pthread_kill(MAIN, signal.SIGUSR1)
            signals.wait()
        finally:
            paused.resume()

    def request_memory() -> None:
        if attached:
            assert testing.allocate_attached(0, 8 * MIB) is None
        else:
            block(8 * MIB)
        repeat_bytecode()

    with PausedCollection("finalizer") as paused:
        fill_with_garbage()
        with running(send_when_it_waits), pytest.raises(ArrivedError):
            request_memory()
    assert signals.handled == [MAIN]
    counters.check_all_rescued()


def repeat_bytecode() -> None:
    """Handlers run between bytecodes, some time after the signal."""
    for _ in range(1000):
        pass


@pytest.mark.parametrize("elsewhere", [False, True], ids=["main thread", "collector thread"])
def test_interrupt(counters: Counters, signals: Signals, elsewhere: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt by Python's own handler. In a finalizer on the main thread it is CPython's to report; sent
    from the collector thread it is raised in the program."""
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(report.exc_type))
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def request_memory() -> None:
        garbage_that(lambda: signal.raise_signal(signal.SIGINT))
        if elsewhere:
            block(8 * MIB)
        else:
            assert testing.allocate_attached(0, 8 * MIB) is None
        repeat_bytecode()

    if elsewhere:
        with another_thread(), pytest.raises(KeyboardInterrupt):
            request_memory()
        assert reported == []
    else:
        request_memory()
        assert reported == [KeyboardInterrupt]
    counters.check_all_rescued()
    assert counters["events"] == 1


def test_timer_throughout(counters: Counters, signals: Signals) -> None:
    """Signals all the time: waits that they interrupt go on."""
    signals.install(lambda: block(128), signal.SIGALRM)
    signal.set_wakeup_fd(-1)
    with another_thread():
        signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
        try:
            for _ in range(200):
                node = Node()
                node.tensor = block()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    assert len(signals.handled) > 0
    counters.check_balanced()


def test_the_collector_thread_takes_no_signal_from_the_program(fork_script: RunScript) -> None:
    """One that the program blocks later to wait for it, where the thread was there before."""
    script = """
    import signal
    from pathlib import Path
    inside = []
    class Finalized(Node):
        def __del__(self):
            inside.append((threading.get_native_id(), signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    with another_thread():
        fill_with_garbage()
        Finalized()
        block(8 * MIB)
    (thread, mask), = inside
    assert thread != os.getpid()
    # What it starts for the request has the requester's mask.
    assert mask == {signal.SIGUSR2}, mask
    def status():
        return dict(line.split(":\t", 1) for line in Path(f"/proc/self/task/{thread}/status").read_text().splitlines())
    assert status()["Name"] == "flex-collector"
    while True:
        blocked = {number for number in range(1, 65) if int(status()["SigBlk"], 16) >> number - 1 & 1}
        if blocked != mask:
            break
    faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
    assert signal.valid_signals() - blocked == faults | {signal.SIGKILL, signal.SIGSTOP}
    waited_for = {signal.SIGUSR1, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    for number in waited_for:
        os.kill(os.getpid(), number)
        print(signal.sigwait(waited_for).name)
    """
    assert sorted(fork_script(script).check().split()) == ["SIGTERM", "SIGUSR1"]
