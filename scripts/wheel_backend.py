"""The build backend of the Python distribution: maturin's, with the command flexmem built first.

maturin makes a wheel of one crate, the extension. The command is another, so this builds it where pyproject.toml has
the wheel's other files; from there it goes into the folder for programs of the environment that the wheel is
installed in. scripts/extension.sh does the same for `make setup`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import maturin
from maturin import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "target/wheel/scripts"
"""`tool.maturin.data` of pyproject.toml, and its folder for programs."""
SCRIPTS.mkdir(parents=True, exist_ok=True)  # Without it maturin refuses the project, whatever is asked of it.

Settings = Mapping[str, Any] | None


SEPARATOR = "\x1f"
"""Between the flags of CARGO_ENCODED_RUSTFLAGS, which cargo prefers to RUSTFLAGS; paths may have spaces."""


HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


def expect_torch() -> None:
    """Fail at once where crates/torch-spyre/build.rs would, some minutes later: without a PyTorch."""
    python = os.environ.get("TORCH_SPYRE_PYTHON") or sys.executable
    if subprocess.run([python, "-c", HAS_TORCH], check=False).returncode:
        sys.exit(
            f"error: {python} has no PyTorch, which the extension is compiled against. pip builds in an environment "
            "of its own unless told otherwise: use --no-build-isolation in one that has torch and maturin, or name "
            "an interpreter that has torch with TORCH_SPYRE_PYTHON=/path/to/python"
        )


def prepare() -> None:
    """See that there is a PyTorch and a cargo, and that what is built names no folder of this machine."""
    expect_torch()
    if not shutil.which("cargo"):
        # Then maturin asks for this package, which installs Rust for the build.
        from puccinialin import setup_rust

        os.environ.update(setup_rust())
    os.environ["CARGO_ENCODED_RUSTFLAGS"] = SEPARATOR.join(rust_flags(os.environ))


def rust_flags(environment: Mapping[str, str]) -> list[str]:
    """The flags that the user set, and those that shorten the paths in messages and in debug information.

    Those of PyTorch's headers are shortened by crates/torch-spyre/build.rs, which knows where they are.
    """
    encoded = environment.get("CARGO_ENCODED_RUSTFLAGS")
    flags = environment.get("RUSTFLAGS", "").split() if encoded is None else encoded.split(SEPARATOR)
    cargo_home = environment.get("CARGO_HOME") or Path.home() / ".cargo"
    # The last that fits counts: a checkout may lie in the folder of cargo, and the other way round.
    remapped = {cargo_home: "cargo", ROOT: "torch-spyre-flex"}
    return [flag for flag in flags if flag] + [
        f"--remap-path-prefix={folder}={name}"
        for folder, name in sorted(remapped.items(), key=lambda item: len(str(item[0])))
    ]


def build_command() -> None:
    """Build flexmem and put it into the folder that maturin takes programs from."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    command = ["cargo", "build", "--release", "--package", "flexmem", "--bin", "flexmem", "--target-dir", str(target)]
    subprocess.run(command, cwd=ROOT, check=True)
    part = SCRIPTS.parent / f"flexmem.{os.getpid()}"  # Not in the folder, all of which maturin packs.
    shutil.copy2(ROOT / target / os.environ.get("CARGO_BUILD_TARGET", "") / "release/flexmem", part)
    part.replace(SCRIPTS / "flexmem")


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """As PEP 517 says."""
    prepare()
    build_command()
    wheel: str = maturin.build_wheel(wheel_directory, config_settings, metadata_directory)
    return wheel


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """As PEP 660 says."""
    prepare()
    build_command()
    wheel: str = maturin.build_editable(wheel_directory, config_settings, metadata_directory)
    return wheel
