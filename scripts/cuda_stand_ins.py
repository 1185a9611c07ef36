"""Put stand-ins into an installed PyTorch for CUDA libraries that were left out.

The wheels of PyTorch for Linux are linked against some 2.5 GB of CUDA libraries and do not load without them,
although a machine without a GPU never calls them. A stand-in has the name, the symbol versions and the functions
that PyTorch's libraries ask for, so that the loader is content. To call one of its functions is a fault: the
process says which it was and ends.

What is installed is used; only what is missing gets a stand-in. Needs a C compiler and binutils, as the build does.

    cuda_stand_ins.py SITE-PACKAGES
"""

import ctypes
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# The names of what CUDA's libraries offer without a symbol version.
UNVERSIONED = re.compile(r"(cu|nccl|nvshmem)[A-Za-z_]\w*$")
# Loaded on the first use of a GPU only.
ON_DEMAND = {"libcaffe2_nvrtc.so", "libtorch_cuda_linalg.so"}

SOURCE = """\
#include <stdio.h>
#include <stdlib.h>
static void left_out(const char *name) {
    fprintf(stderr, "%s was called, of a CUDA library that is left out here\\n", name);
    abort();
}
"""


def output_of(*command: object) -> str:
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


def is_on_this_machine(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def missing_libraries(libraries: list[Path], packages: Path) -> set[str]:
    """Names that the libraries are linked against and that the loader will not find."""
    shown = output_of("readelf", "--dynamic", "--wide", *libraries)
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", shown))
    there = {path.name for path in libraries} | {path.name for path in packages.glob("nvidia/*/lib/*")}
    return {name for name in needed - there if not is_on_this_machine(name)}


def wanted_functions(libraries: list[Path]) -> tuple[dict[str, set[str]], set[str]]:
    """What the libraries want of others: by symbol version, and what has none but one of CUDA's names."""
    versioned, unversioned = defaultdict(set), set()
    for line in output_of("nm", "--dynamic", "--undefined-only", *libraries).splitlines():
        name, _, version = line.rpartition(" ")[2].partition("@")
        if version:
            versioned[version.lstrip("@")].add(name)
        elif UNVERSIONED.match(name):
            unversioned.add(name)
    return versioned, unversioned


def version_of(library: str, versions: set[str]) -> str | None:
    """The symbol version of a library: its own name, or the first part of that in capitals (NVSHMEM)."""
    stem = library.removeprefix("lib").partition("_")[0].upper()
    return next((version for version in (library, stem) if version in versions), None)


def build(library: Path, functions: set[str], version: str | None) -> None:
    """Compile one stand-in; it appears under its name when it is complete."""
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        source, script, built = (Path(scratch) / name for name in ("source.c", "versions", "built.so"))
        bodies = "".join(f'void {name}(void) {{ left_out("{name}"); }}\n' for name in sorted(functions))
        source.write_text(SOURCE + (bodies or "void spyre_stand_in(void) { left_out(__func__); }\n"))
        options = ["-shared", "-fPIC", "-O1", f"-Wl,-soname,{library.name}"]
        if version:
            script.write_text(f"{version} {{ global: *; }};\n")
            options.append(f"-Wl,--version-script={script}")
        output_of(*os.environ.get("CC", "cc").split(), *options, source, "-o", built)
        built.rename(library)


def main() -> None:
    packages = Path(sys.argv[1])
    folder = packages / "torch/lib"
    libraries = [path for path in sorted(folder.glob("*.so*")) if path.name not in ON_DEMAND]
    missing = missing_libraries(libraries, packages)
    versioned, unversioned = wanted_functions(libraries)
    for name in sorted(missing):
        version = version_of(name, set(versioned))
        # Without versions it is not known which library a function belongs to; any of them will do.
        build(folder / name, versioned[version] if version else unversioned, version)
    print(f"    stand-ins for {', '.join(sorted(missing)) or 'nothing'}", flush=True)


if __name__ == "__main__":
    main()
