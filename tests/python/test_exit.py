"""The end of the process: late deleters, native threads, allocations after the gate has closed. Exit status 0."""

from __future__ import annotations

from conftest import RunScript


def test_tensors_that_outlive_everything(run_script: RunScript) -> None:
    script = """
    import gc, sys, torch
    gc.disable()
    class Node: pass
    kept = torch.ones(1000, device="spyre")
    node = Node(); node.me = node; node.tensor = torch.ones(1000, device="spyre")
    sys.last_node = node
    torch.library.kept = [torch.ones(1000, device="spyre", requires_grad=True) * 2]
    """
    run_script(script).check()


def test_allocations_at_exit_do_not_collect(run_script: RunScript) -> None:
    script = """
    import atexit, gc, torch
    gc.disable()
    class Node: pass
    def at_exit():
        assert torch.ones(4, device="spyre").sum().item() == 4.0
        try:
            torch.empty(40 << 20, dtype=torch.uint8, device="spyre")
        except torch.OutOfMemoryError as error:
            print(str(error).partition("Python GC ")[2])
        print(torch.spyre.memory.pressure_stats()["collections.skipped.finalizing"])
    # Called after the package's own handler, which closes the gate: they run last registered first.
    import torch_spyre
    atexit.unregister(torch_spyre._C.shutdown)
    atexit.register(at_exit)
    atexit.register(torch_spyre._C.shutdown)
    for _ in range(60):
        node = Node(); node.me = node; node.tensor = torch.empty(1 << 20, dtype=torch.uint8, device="spyre")
    """
    lines = run_script(script).check().splitlines()
    assert lines == ["did not run: the interpreter is shutting down.", "1"]


def test_native_threads_under_pressure_at_exit(run_script: RunScript) -> None:
    script = """
    import gc, threading, torch, torch_spyre
    gc.disable()
    class Node: pass
    for _ in range(62):
        node = Node(); node.me = node; node.tensor = torch.empty(1 << 20, dtype=torch.uint8, device="spyre")
    rescued = lambda: torch.spyre.memory.pressure_stats()["rescued"]
    allocate = lambda: torch_spyre._C.testing.allocate_native(0, 40 << 20, 4, 10**7)
    threading.Thread(target=allocate, daemon=True).start()
    while not rescued():
        pass
    print("under pressure")
    """
    assert run_script(script).check() == "under pressure\n"
