"""Streams where processes fork, meet at one file, and end."""

from __future__ import annotations

from pathlib import Path

from conftest import RunScript
from stream_tools import Flexmem, RunChild, info, memory


def test_a_forked_child_streams_nothing_and_leaves_the_file_alone(
    child: RunChild, tmp_path: Path, flexmem: Flexmem
) -> None:
    code = """
import os, sys, torch
memory = torch.spyre.memory
torch.empty(1 << 20, dtype=torch.uint8, device="spyre")
forked = os.fork()
if forked == 0:
    import torch_spyre
    assert torch_spyre._C.history_stream() is None
    assert torch_spyre._C.stop_history_stream()
    sys.exit(7)  # With atexit, as a program ends.
assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 7
assert os.path.exists(memory._history_stream()["socket"])
torch.empty(1 << 20, dtype=torch.uint8, device="spyre")
"""
    child(code, f",stream_socket:true,stream_file:{tmp_path}/run.trace").check()
    (device,) = info(flexmem, tmp_path / "run.trace")["devices"]
    assert device["events"]["allocations"] == 2
    assert device["history"]["lost_events"] == 0


def test_two_processes_do_not_write_into_one_file(child: RunChild, tmp_path: Path) -> None:
    file = tmp_path / "run.trace"
    memory._record_memory_history(stream_file=file)
    code = """
import torch
try:
    torch.spyre.memory._record_memory_history(stream_file={!r})
except OSError as error:
    print(error)
"""
    assert "another process streams to it; expected one file for each" in child(code.format(str(file))).check()


def test_a_warning_at_exit_that_is_an_error_keeps_nothing_from_being_closed(
    run_script: RunScript, tmp_path: Path
) -> None:
    script = """
    import atexit

    def last():  # Of what runs at exit, since it comes before the import.
        from torch_spyre import _C
        print("closed" if _C.testing.capture_stack(True) == 0 else "open")

    atexit.register(last)
    import resource, warnings, torch
    from torch_spyre import _C
    memory = torch.spyre.memory
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
    while memory._history_stream()["file_error"] is None:
        for _ in range(100):
            torch.empty(256, dtype=torch.uint8, device="spyre")
    assert _C.testing.capture_stack(True) != 0
    warnings.simplefilter("error")
    """
    conf = f"device_memory:64MiB,history:10000,stream_file:{tmp_path}/run.trace"
    ran = run_script(script, env={"TORCH_SPYRE_ALLOC_CONF": conf})
    assert ran.check() == "closed\n"
    assert "run.trace is not whole: File too large" in ran.err
