"""The end of a process whose collector thread never returns from a finalizer: exit status 0, and no abort."""

from __future__ import annotations

from conftest import RunScript


def test_finalizer_that_loops_on_the_collector_thread(run_script: RunScript) -> None:
    """Before 3.14 CPython ends the thread by unwinding it when it next wants the GIL: through Rust that would abort."""
    script = """
    import gc, threading, torch, torch_spyre
    gc.disable()
    class Node:
        def __init__(self):
            self.me = self
    class Looping(Node):
        def __del__(self):
            looping.set()
            while True:
                pass
    looping = threading.Event()
    Looping()
    for _ in range(62):
        node = Node(); node.tensor = torch.empty(1 << 20, dtype=torch.uint8, device="spyre")
    torch.spyre.memory.set_pressure_policy(timeout_ms=100)
    (error,) = torch_spyre._C.testing.allocate_native(0, 40 << 20, 1, 1)
    assert "spyre out of memory" in error, error
    assert looping.is_set()
    print(torch.spyre.memory.pressure_stats()["collectors_abandoned"])
    """
    assert run_script(script).check() == "1\n"
