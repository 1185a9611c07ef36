"""The end of the process: late deleters, native and daemon threads, finalizers that never return. Exit status 0."""

from __future__ import annotations

import signal

import pytest

from conftest import FREE_THREADED, RunScript, Script

pytestmark = [pytest.mark.pressure, pytest.mark.scenario(10)]


def test_tensors_that_outlive_everything(fork_script: RunScript) -> None:
    """Deleters run in the teardown of modules, and after it."""
    script = """
    fill_with_garbage()
    block(8 * MIB)
    kept = torch.ones(1000, device="spyre")
    node = Node(); node.tensor = torch.ones(1000, device="spyre")
    sys.last_node = node
    torch.library.kept = [torch.ones(1000, device="spyre", requires_grad=True) * 2]
    make_garbage()
    print(memory.pressure_stats()["rescued"])
    """
    assert fork_script(script).check() == "1\n"


def test_allocations_at_exit_do_not_collect(fork_script: RunScript) -> None:
    script = """
    import atexit
    def at_exit():
        assert torch.ones(4, device="spyre").sum().item() == 4.0
        try:
            block(40 * MIB)
        except torch.OutOfMemoryError as error:
            print(str(error).partition("Python GC ")[2].partition(" The request")[0])
        print(memory.pressure_stats()["collections.skipped.finalizing"])
    # Called after the handler that closes the gate: they run last registered first.
    atexit.unregister(torch_spyre._C.shutdown)
    atexit.register(at_exit)
    atexit.register(torch_spyre._C.shutdown)
    for _ in range(60):
        make_garbage()
    """
    lines = fork_script(script).check().splitlines()
    assert lines == ["did not run: the interpreter is shutting down.", "1"]


def test_native_threads_under_pressure_at_exit(fork_script: RunScript) -> None:
    script = """
    for _ in range(62):
        make_garbage()
    allocate = lambda: testing.allocate_native(0, 40 * MIB, 4, 10**7)
    threading.Thread(target=allocate, daemon=True).start()
    while not memory.pressure_stats()["rescued"]:
        pass
    print("under pressure")
    """
    assert fork_script(script).check() == "under pressure\n"


@pytest.mark.scenario(6)
def test_finalizer_that_never_returns(fork_script: RunScript) -> None:
    """The collector thread is stuck in it. That request fails at its deadline; the next ones fail at once, however long
    theirs is; what is freed can be allocated; hooks run; and the process ends."""
    script = """
    failures = []
    def press(nbytes):
        try:
            block(nbytes)
        except torch.OutOfMemoryError as error:
            failures.append(str(error))
    entered = []
    class Endless(Node):
        def __del__(self):
            entered.append(None)
            while True:
                pass
    live = [block(4 * MIB) for _ in range(8)]
    with another_thread():
        fill_with_garbage()
        Endless()
        memory.set_pressure_policy(timeout_ms=200)
        while not entered:  # On a busy machine the deadline may pass before the collection begins.
            press(60 * MIB)
        stuck = len(failures)
        memory.set_pressure_policy(timeout_ms=3_600_000)  # Whoever waited that long would hang.
        for _ in range(3):
            press(60 * MIB)
        failures += testing.allocate_native(0, 60 * MIB, 1, 1)
        assert testing.allocate_attached(0, 60 * MIB) is not None
        counters = memory.pressure_stats()
        live.pop()
        made = torch.ones(MIB, dtype=torch.uint8, device="spyre")
        assert made.sum().item() == MIB
        del made
        def give_up(_):
            for tensor in live:  # Not `live.clear()`: without a GIL another thread's tensors may die later.
                tensor.untyped_storage().resize_(0)
        with memory.register_pressure_hook(give_up):
            kept = block(6 * MIB)  # More than is free: the hook gives it, on another collector thread.
    for text in failures:
        assert "no collection could run before the deadline" in text, text
    assert len(failures) == stuck + 4, failures
    assert counters["events"] == counters["failed"] == counters["collections.skipped.timeout"] == stuck + 5, counters
    assert counters["collectors_abandoned"] == 1, counters
    after = memory.pressure_stats()
    assert (after["rescued"], after["hooks.run"], after["hooks.failed"]) == (1, 1, 0), after
    testing.validate(0)
    print("usable")
    """
    assert fork_script(script).check() == "usable\n"


def test_daemon_thread_that_waits_in_the_allocator_at_exit(fork_script: RunScript) -> None:
    """Woken by the closing gate, it must not return to torch, which would wait for the interpreter in a destructor."""
    script = """
    def allocate():
        block(8 * MIB)
        print("served")
    def paused():
        entered.set()
        threading.Event().wait()
    class Pausing(Node):
        def __del__(self):
            paused()
    def collect():
        Pausing()
        gc.collect()
    entered = threading.Event()
    live = [block() for _ in range(62)]
    threading.Thread(target=collect, daemon=True).start()
    entered.wait()
    threading.Thread(target=allocate, daemon=True).start()
    threading.Thread(target=lambda: print(testing.allocate_native(0, 8 * MIB, 2, 1)), daemon=True).start()
    testing.wait_for_gate(4, behind_foreign=True)
    print("they wait", flush=True)
    """
    assert fork_script(script).check().splitlines()[0] == "they wait"


WOKEN_AT_TEARDOWN = """
import time
future, result, ident = torch.futures.Future(), torch.ones(1), []
def wait():
    ident.append(threading.get_native_id())
    began.set()
    future.wait()
class Teardown:
    def __del__(self, wake=future.set_result, result=result, ident=ident, exists=os.path.exists, sleep=time.sleep):
        wake(result)
        for _ in range(1000):  # Until it has ended, or the process has; from 3.14 on it hangs.
            if not exists(f"/proc/self/task/{ident[0]}"):
                break
            sleep(0.001)
        print("woken", flush=True)
began = threading.Event()
sys.setswitchinterval(1000)  # The thread lets go of the interpreter inside torch, not before.
threading.Thread(target=wait, daemon=True).start()
began.wait()
sys.at_teardown = Teardown()
"""
"""A daemon thread waits inside torch, detached, and is woken when the interpreter is finalizing."""

BUSY_DAEMONS = """
def allocate():
    while True:
        node = Node(); node.tensor = torch.empty(2 * MIB, dtype=torch.uint8, device={device!r})
        steps.append(None)
steps = []
for _ in range(4):
    threading.Thread(target=allocate, daemon=True).start()
while len(steps) < 200:
    pass
print("busy", flush=True)
"""


def aborted(script: Script) -> bool:
    assert script.returncode in (0, -signal.SIGABRT, -signal.SIGSEGV), f"{script.returncode}\n{script.err}"
    return script.returncode != 0


def test_busy_daemon_threads(fork_script: RunScript) -> None:
    """No hang, and no abort where torch does not abort by itself: before 3.14 CPython ends a thread that comes back to
    it at the end by unwinding it through torch. Whether it does is forced, not left to luck; whether it meets a thread
    that allocates is luck, on the CPU as well."""
    torch_aborts = aborted(fork_script(WOKEN_AT_TEARDOWN))
    script = fork_script(BUSY_DAEMONS.format(device="spyre") + 'print(memory.pressure_stats()["rescued"] > 0)')
    assert script.out == "busy\nTrue\n"
    assert torch_aborts or not aborted(script)


# CPython 3.13t keeps the lock by which threads stop the world if a daemon thread waits for it when the program ends:
# with `gc.get_referrers(None)` in three such threads, and nothing of ours, 12 of 12 programs did not end.
LOOKS = [] if FREE_THREADED else ["held_report", "dead_bytes"]


@pytest.mark.parametrize("call", ["_snapshot", "_record_memory_history", "empty_cache", *LOOKS])
def test_daemon_threads_that_come_back_to_python_at_exit(fork_script: RunScript, call: str) -> None:
    """From functions that wait without the interpreter, or that look at objects: the process ends as it should."""
    script = f"""
    from torch_spyre._cycles import dead_bytes
    memory._record_memory_history(max_entries=1000)
    call = dead_bytes if {call!r} == "dead_bytes" else getattr(memory, {call!r})
    make_garbage()
    gc.enable()
    gc.set_threshold(100)
    called = [threading.Event() for _ in range(3)]
    def repeat(event):
        while True:
            node = Node()  # Collected where objects are made.
            call()
            event.set()
    for event in called:
        threading.Thread(target=repeat, args=(event,), daemon=True).start()
    for event in called:
        event.wait()
    print("busy", flush=True)
    """
    assert fork_script(script).check() == "busy\n"
