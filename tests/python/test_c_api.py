"""The C ABI of `include/flex.h`, exported by the extension module: the same devices, the same garbage collection.

Called through ctypes, which lets go of the GIL for each call: to the allocator these are native callers.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import torch_spyre._C
from conftest import RunScript
from native import check_cpp, compile_c

MIB = 1 << 20
OK, OUT_OF_MEMORY, UNKNOWN_ALLOCATION, NOT_AVAILABLE = 0, 1, 4, 16
TENSOR, PROGRAM = 0, 1


class Handle(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint64)]


class Directive(ctypes.Structure):
    _fields_ = [
        ("policy", ctypes.c_int32),
        ("memory_type", ctypes.c_int32),
        ("domains", ctypes.POINTER(ctypes.c_uint32)),
        ("domain_count", ctypes.c_size_t),
        ("near", Handle),
    ]


library = ctypes.CDLL(torch_spyre._C.__file__)
library.flex_last_error.restype = ctypes.c_char_p
library.flex_allocate.argtypes = [Handle, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p]
library.flex_free.argtypes = [Handle]
library.flex_allocator_release.argtypes = [Handle]
library.flex_device_allocator.argtypes = [ctypes.c_int32, ctypes.c_void_p]


@pytest.fixture
def allocator() -> Iterator[Handle]:
    torch.spyre.init()
    gc.collect()
    handle = Handle()
    assert library.flex_device_allocator(0, ctypes.byref(handle)) == OK
    torch.spyre.memory.reset_pressure_stats()
    yield handle
    assert library.flex_allocator_release(handle) == OK


def allocate(allocator: Handle, nbytes: int, memory_type: int = TENSOR) -> Handle:
    domain = ctypes.c_uint32(0)
    directive = Directive(0, memory_type, ctypes.pointer(domain), 1, Handle(0))
    allocation = Handle()
    status = library.flex_allocate(allocator, nbytes, ctypes.byref(directive), ctypes.byref(allocation))
    if status != OK:
        raise MemoryError(status, library.flex_last_error().decode())
    return allocation


class Program:
    """A program of the device, in a reference cycle with itself: only a collection frees it."""

    def __init__(self, allocation: Handle) -> None:
        self.allocation = allocation
        self.itself = self

    def __del__(self) -> None:
        assert library.flex_free(self.allocation) == OK


def in_threads(count: int, work: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_the_devices_are_those_of_tensors(allocator: Handle) -> None:
    before = torch.spyre.memory_allocated()
    allocation = allocate(allocator, MIB)
    assert torch.spyre.memory_allocated() == before + MIB
    assert library.flex_free(allocation) == OK
    assert library.flex_free(allocation) == UNKNOWN_ALLOCATION
    assert torch.spyre.memory_allocated() == before
    other = Handle()
    assert library.flex_device_allocator(99, ctypes.byref(other)) == NOT_AVAILABLE
    assert b"got device index 99" in library.flex_last_error()


@pytest.mark.pressure
def test_a_native_request_has_dead_tensors_collected(allocator: Handle) -> None:
    gc.disable()
    try:
        for _ in range(16):
            cycle: list[object] = [torch.empty(4 * MIB, dtype=torch.uint8, device="spyre")]
            cycle.append(cycle)
        del cycle
        assert library.flex_free(allocate(allocator, 16 * MIB)) == OK
    finally:
        gc.enable()
    stats = torch.spyre.memory.pressure_stats()
    assert stats["events"] == stats["rescued"] == 1
    assert stats["collections.young"] + stats["collections.full"] >= 1


@pytest.mark.pressure
def test_job_plans_built_off_the_gil_have_dead_programs_collected(allocator: Handle) -> None:
    def build() -> None:
        for _ in range(16):
            Program(allocate(allocator, MIB // 2, PROGRAM))  # Garbage at once.

    in_threads(4, build)  # 32 MiB; there are 4 MiB of program memory.
    stats = torch.spyre.memory.pressure_stats()
    assert stats["events"] > 0
    assert stats["rescued"] == stats["events"]
    gc.collect()
    held = [allocate(allocator, MIB // 2, PROGRAM) for _ in range(8)]
    with pytest.raises(MemoryError, match="out of memory") as failure:
        allocate(allocator, 128, PROGRAM)
    assert failure.value.args[0] == OUT_OF_MEMORY
    assert all(library.flex_free(allocation) == OK for allocation in held)


@pytest.mark.pressure
def test_a_native_callback_calls_the_one_that_collects(allocator: Handle, tmp_path: Path) -> None:
    # Written in C: a callback in Python would take the GIL with the allocator mutex held.
    native = compile_c("chained_callback.c", tmp_path / "chained_callback.so", "-shared", "-fPIC")
    ctypes.CDLL(torch_spyre._C.__file__, mode=ctypes.RTLD_GLOBAL)  # The functions it calls.
    chained = ctypes.CDLL(str(native))
    chained.chain.argtypes = chained.unchain.argtypes = [Handle]

    assert chained.chain(allocator) == OK
    try:
        for _ in range(16):
            Program(allocate(allocator, MIB, PROGRAM))
    finally:
        assert chained.unchain(allocator) == OK
    stats = torch.spyre.memory.pressure_stats()
    assert chained.chained_calls() >= 1
    assert stats["rescued"] == stats["events"] >= 1
    calls = chained.chained_calls()
    for _ in range(16):
        Program(allocate(allocator, MIB, PROGRAM))
    assert torch.spyre.memory.pressure_stats()["events"] > stats["events"]
    assert chained.chained_calls() == calls


def test_before_the_device_is_used_there_is_none(run_script: RunScript) -> None:
    script = """
        import ctypes, sys
        import torch
        library = ctypes.CDLL(sys.stdin.read())
        library.flex_last_error.restype = ctypes.c_char_p
        made = ctypes.c_uint64()
        assert library.flex_device_allocator(0, ctypes.byref(made)) == 16
        assert b"expected torch_spyre to be imported" in library.flex_last_error()
    """
    env = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    run_script(script, env=env, stdin=torch_spyre._C.__file__).check()


def test_the_headers_come_with_the_package(tmp_path: Path) -> None:
    folder = Path(torch_spyre.include_dir())
    assert folder.parent == Path(torch_spyre.__file__).parent
    assert sorted(header.name for header in folder.iterdir()) == ["flex.h", "flex.hpp"]
    source = tmp_path / "uses.cpp"
    source.write_text(
        "#include <flex.hpp>\nint main() { return flex::Allocator::uniform(1 << 20).statistics().free_bytes == 0; }\n"
    )
    check_cpp(source)
