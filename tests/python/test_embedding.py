"""A native program that embeds Python: its allocations before, while and after there is an interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import torch_spyre._C
from conftest import FREE_THREADED
from native import compile_c, embedding_flags, flex_library

SECONDS = 60
"""More than the program gives itself."""


@pytest.mark.pressure
def test_a_native_program_that_embeds_python(tmp_path: Path) -> None:
    flags = embedding_flags()
    if flags is None:
        archive = f"{sysconfig.get_config_var('LIBPL')}/libpython{sysconfig.get_config_var('LDVERSION')}.a"
        assert not os.environ.get("CI") or FREE_THREADED, f"a program cannot embed {sys.executable}: no {archive}"
        pytest.skip(f"{sys.executable} was built without --enable-shared, and there is no {archive}")
    folder = flex_library()
    link = [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lflex_c", "-lpthread", "-ldl"]
    host = compile_c("embedding_host.c", tmp_path / "host", *link, *flags)
    done = subprocess.run(
        [host, sys.executable, torch_spyre._C.__file__], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stdout == "ok\n"
