"""The environment: what is accepted, and what a bad value says."""

from __future__ import annotations

import ast
import json

import pytest

import torch_spyre
from conftest import RunScript

SHOW = """
import torch
import torch_spyre
print(torch_spyre._C.configuration() | {"capacity": torch.spyre.mem_get_info()[1]})
"""


def configuration(run_script: RunScript, env: dict[str, str]) -> dict[str, object]:
    return dict(ast.literal_eval(run_script(SHOW, env=env).check()))


def test_defaults(run_script: RunScript) -> None:
    empty = configuration(run_script, {"TORCH_SPYRE_ALLOC_CONF": ""})
    assert empty == {
        "device_memory": 4 << 30,
        "devices": 1,
        "gc": "always",
        "gc_timeout_ms": 10_000,
        "escalate": True,
        "region_order": "most_free",
        "history": 0,
        "stream_file": None,
        "stream_socket": False,
        "poison": False,
        "cycles": False,
        "cycle_warning": None,
        "device": "SIM",
        "max_regions": 7,
        "memory_domains": 1,
        "debug": False,
        "capacity": 4 << 30,
    }


def test_every_key(run_script: RunScript) -> None:
    text = (
        " device_memory : 1.5gib , devices:3,gc:respect_disable,gc_timeout_ms:250,escalate:false,"
        "region_order:least_free,history:1000,poison:true,"
        "cycles:true,cycle_warning:1MiB "
    )
    shown = configuration(run_script, {"TORCH_SPYRE_ALLOC_CONF": text})
    assert shown["capacity"] == shown["device_memory"] == 3 << 29
    assert (shown["devices"], shown["gc"], shown["gc_timeout_ms"]) == (3, "respect_disable", 250)
    assert (shown["escalate"], shown["region_order"], shown["poison"]) == (False, "least_free", True)
    assert shown["history"] == 1000
    assert (shown["cycles"], shown["cycle_warning"]) == (True, 1 << 20)


def test_hardware_layout(run_script: RunScript) -> None:
    env = {"FLEX_DEVICE": "VF", "FLEX_MAX_REGIONS": "8", "FLEX_NUM_MEMORY_DOMAINS": "2"}
    shown = configuration(run_script, env | {"TORCH_SPYRE_ALLOC_CONF": "device_memory:64MiB"})
    assert (shown["device"], shown["max_regions"], shown["memory_domains"]) == ("VF", 8, 2)
    assert shown["capacity"] == 56 << 20, "one of eight regions is for programs"


def test_tensors_use_every_domain(run_script: RunScript) -> None:
    script = """
    import torch
    tensors = [torch.full((1 << 20,), index, dtype=torch.uint8, device="spyre") for index in range(56)]
    print([int(tensor[-1]) for tensor in tensors] == list(range(56)))
    """
    for kind in ("PF", "VF"):
        env = {"FLEX_DEVICE": kind, "FLEX_MAX_REGIONS": "8", "FLEX_NUM_MEMORY_DOMAINS": "2"}
        assert run_script(script, env=env | {"TORCH_SPYRE_ALLOC_CONF": "device_memory:64MiB"}).check() == "True\n"


BAD = [
    ("TORCH_SPYRE_ALLOC_CONF", "device_memory:0", "'device_memory:0'|at least 128 bytes"),
    ("TORCH_SPYRE_ALLOC_CONF", "device_memory:64MB", "'device_memory:64MB'|such as 4GiB"),
    ("TORCH_SPYRE_ALLOC_CONF", "device_memory:-1GiB", "'device_memory:-1GiB'|such as 4GiB"),
    ("TORCH_SPYRE_ALLOC_CONF", "device_memory:1.GiB", "'device_memory:1.GiB'|such as 4GiB"),
    ("TORCH_SPYRE_ALLOC_CONF", "device_memory:1e3", "'device_memory:1e3'|such as 4GiB"),
    ("TORCH_SPYRE_ALLOC_CONF", "device_memory:999999999TiB", "'device_memory:999999999TiB'"),
    ("TORCH_SPYRE_ALLOC_CONF", "device_memory:600GiB", "644245094400"),
    ("TORCH_SPYRE_ALLOC_CONF", "devices:0", "'devices:0'|an integer from 1 to 64"),
    ("TORCH_SPYRE_ALLOC_CONF", "devices:1.5", "'devices:1.5'|an integer from 1 to 64"),
    ("TORCH_SPYRE_ALLOC_CONF", "gc:never", "'gc:never'|gc:off"),
    ("TORCH_SPYRE_ALLOC_CONF", "gc_timeout_ms:0", "'gc_timeout_ms:0'|an integer from 1"),
    ("TORCH_SPYRE_ALLOC_CONF", "escalate:yes", "'escalate:yes'|true or false"),
    ("TORCH_SPYRE_ALLOC_CONF", "poison:1", "'poison:1'|true or false"),
    ("TORCH_SPYRE_ALLOC_CONF", "cycles:1", "'cycles:1'|true or false"),
    ("TORCH_SPYRE_ALLOC_CONF", "cycle_warning:big", "'cycle_warning:big'|a size of at least 128 bytes, such as 64MiB"),
    ("TORCH_SPYRE_ALLOC_CONF", "cycle_warning:1MiB,cycles:false", "'cycles:false'|no cycle_warning beside it"),
    ("TORCH_SPYRE_ALLOC_CONF", "region_order:random", "'region_order:random'|most_free"),
    ("TORCH_SPYRE_ALLOC_CONF", "history:all", "'history:all'|an integer from 0 to 4194304"),
    ("TORCH_SPYRE_ALLOC_CONF", "history:9,stream_file:", "'stream_file:'|a path, such as /tmp/run-%p.trace"),
    ("TORCH_SPYRE_ALLOC_CONF", "history:9,stream_socket:1", "'stream_socket:1'|true or false"),
    ("TORCH_SPYRE_ALLOC_CONF", "stream_socket:true", "'stream_socket'|a history to stream beside it"),
    ("TORCH_SPYRE_ALLOC_CONF", "history:0,stream_file:run.trace", "'stream_file'|such as history:100000"),
    ("TORCH_SPYRE_ALLOC_CONF", "device_memory", "'device_memory'|key:value"),
    ("TORCH_SPYRE_ALLOC_CONF", "gc:off,", "''|key:value"),
    ("TORCH_SPYRE_ALLOC_CONF", "gc:off,,poison:true", "''|key:value"),
    ("TORCH_SPYRE_ALLOC_CONF", "gc:off,gc:off", "'gc:off'|at most once"),
    ("TORCH_SPYRE_ALLOC_CONF", "memory:4GiB", "'memory:4GiB'|one of device_memory, devices"),
    ("FLEX_DEVICE", "TPU", "'TPU'|SIM, PF, VF or MOCK"),
    ("FLEX_MAX_REGIONS", "1", "'1'|an integer from 2"),
    ("FLEX_MAX_REGIONS", "5000", "'5000'|an integer from 2 to 4096"),
    ("FLEX_MAX_REGIONS", "seven", "'seven'|an integer from 2"),
    ("FLEX_NUM_MEMORY_DOMAINS", "2", "'2'|a divisor of the 7 regions"),
    ("TORCH_SPYRE_ALLOC_DEBUG", "yes", "'yes'|0 or 1"),
]


TRY_ALL = """
import importlib.util
import os
import sys
from importlib.machinery import ExtensionFileLoader
import torch
import json

# The extension by itself: the package remembers the first failure.
origin = {origin!r}
loader = ExtensionFileLoader("torch_spyre._C", origin)
core = importlib.util.module_from_spec(importlib.util.spec_from_file_location(loader.name, origin, loader=loader))
loader.exec_module(core)
for variable, value in json.load(sys.stdin):
    os.environ[variable] = value
    try:
        core.initialize()
    except ValueError as error:
        print(str(error).replace('"', "'"))
    else:
        print("accepted")
    del os.environ[variable]
"""


def test_bad_values(run_script: RunScript) -> None:
    pairs = json.dumps([[variable, value] for variable, value, _ in BAD])
    env = {"TORCH_SPYRE_ALLOC_CONF": "", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    lines = run_script(TRY_ALL.format(origin=torch_spyre._C.__file__), env=env, stdin=pairs).check().splitlines()
    assert len(lines) == len(BAD)
    for line, (variable, _, expected) in zip(lines, BAD, strict=True):
        for part in expected.split("|"):
            assert part in line
        assert variable in line


def test_poison_shows_use_of_unset_and_freed_memory(run_script: RunScript) -> None:
    script = """
    import torch
    tensor = torch.empty(256, dtype=torch.uint8, device="spyre")
    fresh = tensor.cpu()
    alias = torch.empty(0, dtype=torch.uint8, device="spyre")
    import ctypes
    address = tensor.data_ptr()
    del tensor
    freed = bytes((ctypes.c_ubyte * 256).from_address(address))
    print(set(fresh.tolist()), set(freed))
    """
    env = {"TORCH_SPYRE_ALLOC_CONF": "device_memory:1MiB,poison:true"}
    assert run_script(script, env=env).check() == f"{{{0xCD}}} {{{0xDD}}}\n"


def test_debug_prints_every_allocation_and_free(run_script: RunScript) -> None:
    script = """
    import torch
    tensor = torch.empty(1000, dtype=torch.uint8, device="spyre")
    del tensor
    """
    lines = run_script(script, env={"TORCH_SPYRE_ALLOC_DEBUG": "1"})
    lines.check()
    assert "spyre: allocate 1000 bytes at 0x" in lines.err
    assert "spyre: free 1024 bytes on device 0" in lines.err


@pytest.mark.parametrize("value", [0, -1, 10**30, "soon"])
def test_bad_timeout(value: object) -> None:
    import torch

    with pytest.raises((ValueError, TypeError), match="timeout_ms"):
        torch.spyre.memory.set_pressure_policy(timeout_ms=value)
