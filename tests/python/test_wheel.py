"""What goes into a wheel names no folder of the machine that built it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import torch_spyre

pytest.importorskip("maturin")  # The backend is a layer above it.

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def backend() -> ModuleType:
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module("wheel_backend")
    finally:
        sys.path.remove(str(SCRIPTS))


def test_flags_of_the_user_come_first(backend: ModuleType) -> None:
    own = ["--remap-path-prefix=/cargo=cargo", f"--remap-path-prefix={SCRIPTS.parent}=torch-spyre-flex"]
    assert backend.rust_flags({"CARGO_HOME": "/cargo"}) == own
    assert backend.rust_flags({"CARGO_HOME": "/cargo", "RUSTFLAGS": " -C  opt-level=1 "}) == [
        "-C",
        "opt-level=1",
        *own,
    ]
    # Cargo takes these alone if they are there, and they may have spaces.
    encoded = {"CARGO_HOME": "/cargo", "RUSTFLAGS": "-v", "CARGO_ENCODED_RUSTFLAGS": "-C\x1flinker=/a b"}
    assert backend.rust_flags(encoded) == ["-C", "linker=/a b", *own]
    assert backend.rust_flags({"CARGO_HOME": "/cargo", "RUSTFLAGS": "-v", "CARGO_ENCODED_RUSTFLAGS": ""}) == own


def test_the_innermost_folder_gives_the_name(backend: ModuleType) -> None:
    outer, inner = str(SCRIPTS.parents[1]), str(SCRIPTS.parent / "target/cargo")
    checkout = f"--remap-path-prefix={SCRIPTS.parent}=torch-spyre-flex"
    # rustc takes the last that fits.
    assert backend.rust_flags({"CARGO_HOME": outer}) == [f"--remap-path-prefix={outer}=cargo", checkout]
    assert backend.rust_flags({"CARGO_HOME": inner}) == [checkout, f"--remap-path-prefix={inner}=cargo"]


def test_a_build_without_a_pytorch_ends_before_it_begins(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCH_SPYRE_PYTHON", sys.executable)
    backend.expect_torch()
    without = tmp_path / "python"
    without.write_text(f"#!/bin/sh\nexec '{sys.executable}' -I -S \"$@\"\n")
    without.chmod(0o755)
    monkeypatch.setenv("TORCH_SPYRE_PYTHON", str(without))
    with pytest.raises(SystemExit, match=f"error: {without} has no PyTorch.*--no-build-isolation"):
        backend.expect_torch()


def test_messages_of_pytorchs_headers_do_not_say_where_it_lies() -> None:
    content = Path(torch_spyre._binary._find()).read_bytes()
    assert b"torch/include/" in content, "there are such messages"
    assert str(Path(torch.__file__).parent).encode() not in content
