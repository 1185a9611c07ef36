"""Compiling the native programs and libraries of tests, with the system's compiler and the installed headers."""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path

import torch_spyre

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def compile_c(source: str, output: Path, *flags: str) -> Path:
    """Compiles a C file of this folder."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    warnings = ["-Wall", "-Wextra", "-Werror", "-g", "-O1"]
    command = [*compiler, "-std=gnu11", *warnings, f"-I{torch_spyre.include_dir()}", str(HERE / source), *flags]
    subprocess.run([*command, "-o", str(output)], check=True)
    return output


def check_cpp(source: Path) -> None:
    """Checks that a C++ file compiles."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    warnings = ["-Wall", "-Wextra", "-Werror"]
    command = [*compiler, "-std=c++17", *warnings, f"-I{torch_spyre.include_dir()}", "-fsyntax-only", str(source)]
    subprocess.run(command, check=True)


def python_headers() -> list[str]:
    """What a C file needs that includes Python.h; system headers, whose warnings are not ours."""
    return ["-isystem", sysconfig.get_path("include")]


def embedding_flags() -> list[str] | None:
    """What a program needs that embeds this interpreter. None if it was built without a library to link to."""
    library = f"python{sysconfig.get_config_var('LDVERSION')}"
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        folder = sysconfig.get_config_var("LIBDIR")
        link = [f"-L{folder}", f"-Wl,-rpath,{folder}", f"-l{library}"]
    else:
        archive = Path(sysconfig.get_config_var("LIBPL") or "", f"lib{library}.a")
        if not archive.exists():
            return None
        exported = shlex.split(sysconfig.get_config_var("LINKFORSHARED") or "")
        link = ["-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive", *exported]
    system = (shlex.split(sysconfig.get_config_var(name) or "") for name in ("LIBS", "SYSLIBS"))
    return [*python_headers(), *link, *(flag for flags in system for flag in flags)]


def flex_library() -> Path:
    """The folder of `libflex_c.so`, for programs without Python, built if need be."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    subprocess.run(["cargo", "build", "--quiet", "--package", "flex-c"], cwd=ROOT, check=True)
    return target / "debug"
