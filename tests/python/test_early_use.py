"""The device before and during its set-up: first uses on threads, and other threads while the package is imported."""

from __future__ import annotations

import pytest

from conftest import RunScript

IN_A_THREAD = """
import threading, torch
done = []
def first_use():
    try:
        done.append({expression})
    except BaseException as error:
        done.append(error)
thread = threading.Thread(target=first_use)
thread.start()
thread.join()
print(done[0])
"""

ALL_ZERO = "any(torch.spyre.memory.pressure_stats().values())"


@pytest.mark.parametrize(
    ("expression", "printed"),
    [
        ("torch.ones(3, device='spyre').sum().item()", "3.0"),
        (ALL_ZERO, "False"),
        (f"torch.spyre.memory.set_pressure_policy(gc='off') or {ALL_ZERO}", "False"),
        ("torch.spyre.init() or torch.spyre.is_initialized()", "True"),
        ("(torch.ones(3, device='spyre', requires_grad=True) * 2).sum().backward()", "None"),
    ],
)
def test_a_first_use_in_a_thread(run_script: RunScript, expression: str, printed: str) -> None:
    assert run_script(IN_A_THREAD.format(expression=expression)).check() == f"{printed}\n"


@pytest.mark.pressure
def test_a_first_use_in_a_thread_under_pressure(run_script: RunScript) -> None:
    # The collector has never run for the device, and its thread does not exist yet.
    script = """
    import gc, threading, torch
    gc.disable()
    class Node: pass
    def use():
        for _ in range(200):
            node = Node(); node.me = node; node.tensor = torch.empty(1 << 20, dtype=torch.uint8, device="spyre")
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    stats = torch.spyre.memory.pressure_stats()
    assert stats["events"] == stats["rescued"] > 0 == stats["failed"], stats
    print("ok")
    """
    assert run_script(script).check() == "ok\n"


@pytest.mark.pressure
def test_other_threads_while_the_package_is_imported(run_script: RunScript) -> None:
    # At three points of the import another thread runs to its end: the interleavings are forced.
    script = """
    import ctypes, sys, threading, torch

    def on_a_thread(use):
        done = []
        def run():
            try:
                done.append(use())
            except Exception as error:
                done.append(error)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return done[0]

    def before_the_extension():
        assert isinstance(on_a_thread(lambda: torch.ones(1, device="spyre")), RuntimeError)
        assert isinstance(on_a_thread(lambda: torch.spyre), AttributeError)

    def before_the_device_has_its_name():
        extension = sys.modules["torch_spyre._C"]
        assert on_a_thread(lambda: extension.testing.allocate_native(0, 16 << 20, 4, 1)) == []
        hoard = []
        def fill():
            for _ in range(64):
                hoard.append(allocator.allocate(1 << 20))
        allocator = extension.flex.FlexAllocator.simulated(16 << 20)
        assert isinstance(on_a_thread(fill), extension.flex.OutOfMemoryError)
        assert len(hoard) == 16
        library = ctypes.CDLL(extension.__file__)
        made = ctypes.c_uint64()
        assert on_a_thread(lambda: library.flex_device_allocator(0, ctypes.byref(made))) == 0

    def before_the_package_is_complete():
        def use():
            return torch.ones(3, device="spyre").sum().item(), torch.spyre.memory.get_pressure_policy()["gc"]
        assert on_a_thread(use) == (3.0, "always")

    class Points:
        at = {
            "torch_spyre._C": before_the_extension,
            "torch_spyre.device_module": before_the_device_has_its_name,
            "torch_spyre.flex": before_the_package_is_complete,
        }
        def find_spec(self, name, path=None, target=None):
            if name in self.at:
                self.at.pop(name)()

    sys.meta_path.insert(0, Points())
    import torch_spyre
    assert not Points.at, Points.at
    print(torch.ones(3, device="spyre").sum().item())
    """
    result = run_script(script, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert result.check() == "3.0\n"
