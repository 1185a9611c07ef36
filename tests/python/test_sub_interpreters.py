"""Sub-interpreters: the package refuses them, and the main interpreter goes on as if there were none.

Each test runs in a process of its own: once there has been a sub-interpreter, CPython behaves differently.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import torch_spyre._C
from conftest import RunScript
from native import compile_c, python_headers

REFUSED = """
def refused(name):
    try:
        __import__(name)
    except ImportError as error:
        assert str(error).startswith("torch_spyre cannot be used in a sub-interpreter"), error
    else:
        raise SystemExit(name + " could be imported")

refused("torch_spyre")
refused("torch_spyre._C")
refused("torch_spyre")
import _torch_spyre_autoload
_torch_spyre_autoload.autoload()
import sys
assert "torch" not in sys.modules and "torch_spyre" not in sys.modules
"""


def env() -> dict[str, str]:
    """The environment in which a script finds the modules of this folder and the package under test."""
    return {"PYTHONPATH": f"{Path(torch_spyre._C.__file__).parent.parent}:{Path(__file__).parent}"}


@pytest.mark.parametrize("first", ["", "import torch_spyre"], ids=["nothing", "the device in the main interpreter"])
def test_importing_is_refused(run_script: RunScript, first: str) -> None:
    script = f"""
{first}
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
number = interpreters.create()
assert interpreters.run_string(number, {REFUSED!r}) is None
interpreters.destroy(number)
import torch
print(torch.ones(3, device="spyre").sum().item())
"""
    assert run_script(script, env=env()).check() == "3.0\n"


def test_the_extension_by_its_file_is_refused_too(run_script: RunScript) -> None:
    # Since CPython 3.12 CPython itself refuses.
    loaded = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("torch_spyre._C", {torch_spyre._C.__file__!r})
try:
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    extension.initialize()
except ImportError as error:
    ours, theirs = "torch_spyre cannot be used in a sub-interpreter", "does not support loading in subinterpreters"
    assert str(error).startswith(ours) or theirs in str(error), error
else:
    raise SystemExit("initialized")
"""
    script = f"""
import ctypes, importlib.util, os
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
torch = importlib.util.find_spec("torch").submodule_search_locations[0]
for name in ("libc10.so", "libtorch_cpu.so"):
    ctypes.CDLL(os.path.join(torch, "lib", name))
assert interpreters.run_string(interpreters.create(), {loaded!r}) is None
print("ok")
"""
    assert run_script(script, env=env()).check() == "ok\n"


@pytest.fixture
def helper(tmp_path: Path) -> Path:
    return compile_c("sub_interpreter.c", tmp_path / "sub_interpreter.so", "-shared", "-fPIC", *python_headers())


NATIVE = """
import ctypes, gc, sys, torch_spyre
from pressure_tools import *
main = ctypes.CDLL(torch_spyre._C.__file__, mode=ctypes.RTLD_GLOBAL)  # The functions that the helper calls.
class Handle(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint64)]
device = Handle()
assert main.flex_device_allocator(0, ctypes.byref(device)) == 0
helper = ctypes.PyDLL(HELPER)
helper.sub_interpreter_begin.restype = ctypes.c_void_p
helper.sub_interpreter_end.argtypes = [ctypes.c_void_p]
for function in (helper.request_here, helper.request_on_its_thread):
    function.argtypes = [ctypes.c_void_p, Handle, ctypes.c_uint64, ctypes.c_int]
DETACHED, ATTACHED = 0, 1
gc.disable()
"""


def native(helper: Path) -> str:
    """How a script begins that uses the helper."""
    return f"HELPER = {str(helper)!r}\n{NATIVE}"


@pytest.mark.pressure
@pytest.mark.parametrize("attached", ["DETACHED", "ATTACHED"])
def test_a_thread_of_a_sub_interpreter_collects_nothing(run_script: RunScript, helper: Path, attached: str) -> None:
    script = f"""
{native(helper)}
sub = helper.sub_interpreter_begin()
fill_with_garbage()
counters = Counters()
assert helper.request_on_its_thread(sub, device, 4 * MIB, {attached}) == 1
assert counters["events"] == counters["failed"] == counters["collections.skipped.interpreter"] == 1
assert counters.collections() == 0
# What it finds free it gets.
gc.collect()
assert helper.request_on_its_thread(sub, device, 4 * MIB, {attached}) == 0
helper.sub_interpreter_end(sub)
testing.validate(0)
print("ok")
"""
    assert run_script(script, env=env()).check() == "ok\n"


@pytest.mark.pressure
def test_a_thread_of_the_main_interpreter_that_visits_another(run_script: RunScript, helper: Path) -> None:
    # Before CPython 3.12 it is served without the GIL: it is known as a thread of the main interpreter. With it, nobody
    # can collect in its place, and it looks like a thread without the GIL while another has it; the deadline ends it.
    # Later it is known as the other interpreter's.
    script = f"""
{native(helper)}
sub = helper.sub_interpreter_begin()
fill_with_garbage()
counters = Counters()
if sys.version_info < (3, 12):
    assert helper.request_here(sub, device, 4 * MIB, DETACHED) == 0
    counters.check_all_rescued()
    assert counters.collections() >= 1
else:
    assert helper.request_here(sub, device, 4 * MIB, DETACHED) == 1
    assert counters["events"] == counters["failed"] == counters["collections.skipped.interpreter"] == 1
    gc.collect()

fill_with_garbage()
memory.set_pressure_policy(timeout_ms=200)
counters = Counters()
assert helper.request_here(sub, device, 4 * MIB, ATTACHED) == 1
assert counters["events"] == counters["failed"] == 1
assert counters["collections.skipped.timeout"] + counters["collections.skipped.interpreter"] == 1
memory.set_pressure_policy(timeout_ms=10000)
helper.sub_interpreter_end(sub)
block(4 * MIB)
testing.validate(0)
print("ok")
"""
    assert run_script(script, env=env()).check() == "ok\n"


@pytest.mark.pressure
@pytest.mark.parametrize("alive", [False, True], ids=["gone", "alive"])
def test_the_main_interpreter_under_pressure_after_one(run_script: RunScript, helper: Path, alive: bool) -> None:
    # `PyGILState_Check` is always 1 from here on.
    script = f"""
{native(helper)}
sub = helper.sub_interpreter_begin()
if not {alive}:
    helper.sub_interpreter_end(sub)
for request in (
    lambda: testing.allocate_attached(0, 40 * MIB),
    lambda: block(40 * MIB) is None,
    lambda: testing.allocate_native(0, 10 * MIB, 4, 1),
    lambda: run_threads(4, lambda: block(10 * MIB)),
):
    fill_with_garbage()
    counters = Counters()
    assert not request()
    counters.check_all_rescued()
    assert counters.collections() >= 1
if {alive}:
    helper.sub_interpreter_end(sub)
print("ok")
"""
    assert run_script(script, env=env()).check() == "ok\n"
