"""Make the Python environment: the packages once per machine, a light .venv per checkout.

It is for the interpreter that runs this script. A free-threaded one gets an older PyTorch, which is the last that it
can have, and only what building and testing need; so does one for which $TORCH_SPYRE_TORCH names another minor version
(`2.14`). $TORCH_SPYRE_VENV names the folder (`.venv`).

The packages take 5.7 GB (PyTorch brings its CUDA libraries along), so they are installed once, into
`$TORCH_SPYRE_CACHE/deps-KEY/` (by default `~/.cache/torch-spyre/deps-KEY/`). KEY names the interpreter's ABI
and the content of `requirements/`, so a changed requirement makes a new folder and never changes an old one.
The checkout's `.venv` holds little more than a path file that adds that folder.

An interrupted run leaves nothing that a later one takes for good: the packages are installed under a
temporary name that is renamed when complete, and `.venv` is good once its stamp, written last, is there. A
lock keeps parallel runs apart.

    environment.py          make what is missing
    environment.py lock     write requirements/lock.txt anew, from requirements/dev.in alone
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIRECT = ROOT / "requirements/dev.in"
LOCK = ROOT / "requirements/lock.txt"
FREE_THREADED = ROOT / "requirements/freethreaded.txt"
OTHER_TORCH = ROOT / "requirements/other-torch.txt"
CHOSEN_TORCH = os.environ.get("TORCH_SPYRE_TORCH")
STAND_INS = ROOT / "scripts/cuda_stand_ins.py"
VENV = ROOT / os.environ.get("TORCH_SPYRE_VENV", ".venv")

HEARTBEAT_S = 20


@dataclass(frozen=True)
class Packages:
    """What is installed for one kind of interpreter."""

    pip_arguments: tuple[str, ...]
    sources: tuple[Path, ...]
    """A change of one of these files makes a new folder of packages."""
    needed_gib: int
    """Space for the downloads and what they unpack to."""
    download: str
    imports: str
    """A program that fails if something is missing."""
    modules: tuple[tuple[str, str], ...]
    """Commands in `.venv/bin`, and the modules they run."""
    programs: tuple[tuple[str, str], ...]
    """Programs that the packages bring: the name in `.venv/bin`, and the path from `site-packages`."""
    stand_ins: bool
    """Whether CUDA's libraries are left out."""


MODULES = (("pip", "pip"), ("pytest", "pytest"))
WITH_GIL = Packages(
    pip_arguments=("-r", str(DIRECT), "-c", str(LOCK)),
    sources=(DIRECT, LOCK),
    needed_gib=9,
    download="3 GB to download, some minutes",
    imports="import torch, numpy, sklearn, matplotlib, rich, pytest, mypy, maturin, clang_format",
    modules=(*MODULES, ("mypy", "mypy"), ("torchrun", "torch.distributed.run")),
    programs=(
        *((name, f"../../../bin/{name}") for name in ("ruff", "maturin", "shellcheck")),
        ("clang-format", "clang_format/data/bin/clang-format"),
    ),
    stand_ins=False,
)


def without_cuda(listed: Path, *others: Path, imports: str) -> Packages:
    """What `listed` names, with nothing that those packages depend on: pip would add CUDA's libraries."""
    return Packages(
        pip_arguments=("--no-deps", "-r", str(listed)),
        sources=(listed, *others, STAND_INS),
        needed_gib=3,
        download="600 MB to download, a minute",
        imports=imports,
        modules=(*MODULES, ("torchrun", "torch.distributed.run")),
        programs=(("maturin", "../../../bin/maturin"),),
        stand_ins=True,
    )


def packages() -> Packages:
    """What the interpreter that runs this gets."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        imports = "import sys, torch, numpy, pytest, maturin; sys.exit(sys._is_gil_enabled())"
        return without_cuda(FREE_THREADED, imports=imports)
    if not CHOSEN_TORCH:
        return WITH_GIL
    listed = ROOT / f"requirements/torch-{CHOSEN_TORCH}.txt"
    if not listed.is_file():
        known = ", ".join(sorted(path.stem.removeprefix("torch-") for path in listed.parent.glob("torch-*.txt")))
        sys.exit(f"error: TORCH_SPYRE_TORCH={CHOSEN_TORCH}: expected one of {known}")
    return without_cuda(listed, OTHER_TORCH, imports="import torch, numpy, scipy, safetensors, expecttest, pytest")


PACKAGES = packages()
# Not sys.executable: that may be a virtual environment, even the one that is to be made.
BASE_PYTHON: str = getattr(sys, "_base_executable", sys.executable)


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def cache_folder() -> Path:
    chosen = os.environ.get("TORCH_SPYRE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "torch-spyre"


def key() -> str:
    lines = "".join(source.read_text() for source in PACKAGES.sources).splitlines()
    wanted = "\n".join(line for line in lines if line.strip() and not line.startswith("#"))
    return f"{sysconfig.get_config_var('SOABI')}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"


def site_packages(environment: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}{getattr(sys, 'abiflags', '')}"
    return environment / "lib" / version / "site-packages"


@contextlib.contextmanager
def locked(path: Path, other: str = "another set-up") -> Iterator[None]:
    """Hold an exclusive lock on `path`, saying so when that means waiting for `other`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Waiting for {other} to finish")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def heartbeat(folder: Path) -> Iterator[None]:
    """Without a terminal there is no progress bar: print a line now and then instead."""
    if sys.stdout.isatty():
        yield
        return
    done = threading.Event()
    started = time.monotonic()

    def beat() -> None:
        while not done.wait(HEARTBEAT_S):
            size = subprocess.run(["du", "-sk", folder], capture_output=True, text=True, check=False).stdout
            mib = int(size.split()[0]) >> 10 if size else 0
            print(f"    … {time.monotonic() - started:.0f} s, {mib} MiB on disk", flush=True)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def pip_install(environment: Path, *arguments: str) -> None:
    """Install into `environment`, unpacking beside it: /tmp is too small on many machines."""
    scratch = environment / "tmp"
    scratch.mkdir()
    command = [str(environment / "bin/python"), "-m", "pip", "install", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--root-user-action", "ignore"]
    if not sys.stdout.isatty():
        command += ["--quiet", "--progress-bar", "off"]
    with heartbeat(environment):
        subprocess.run([*command, *arguments], env={**os.environ, "TMPDIR": str(scratch)}, check=True)
    shutil.rmtree(scratch)


def check_disk(cache: Path) -> None:
    free = shutil.disk_usage(cache).free
    if free < PACKAGES.needed_gib << 30:
        sys.exit(
            f"error: {cache} has {free >> 30} GiB free and the Python packages need {PACKAGES.needed_gib} GiB "
            "while they are installed; set TORCH_SPYRE_CACHE to a folder with more room"
        )


def fresh_environment(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    subprocess.run([BASE_PYTHON, "-m", "venv", str(path)], check=True)


def install_packages(cache: Path) -> Path:
    """Return the folder with the packages, installed there first if need be."""
    deps = cache / f"deps-{key()}"
    if deps.is_dir():
        return deps
    with locked(cache / f"deps-{key()}.lock"):
        if deps.is_dir():
            return deps
        check_disk(cache)
        say(f"Installing the Python packages into {deps} (once per machine; {PACKAGES.download})")
        part = deps.with_suffix(".part")
        fresh_environment(part)
        pip_install(part, *PACKAGES.pip_arguments)
        if PACKAGES.stand_ins:
            subprocess.run([sys.executable, str(STAND_INS), str(site_packages(part))], check=True)
        subprocess.run([str(part / "bin/python"), "-c", PACKAGES.imports], check=True)
        for script in (part / "bin").iterdir():
            # Their first line names the temporary folder; .venv/bin has its own.
            if script.is_file() and not script.is_symlink() and script.read_bytes()[:2] == b"#!":
                script.unlink()
        part.rename(deps)
    return deps


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def make_venv(deps: Path) -> None:
    """Make the checkout's environment, which sees the packages in `deps`."""
    stamp = VENV / "made-for"
    wanted = f"{deps}\n{BASE_PYTHON}\n{sys.version}\n"
    with locked(ROOT / "target/venv.lock"):
        if stamp.is_file() and stamp.read_text() == wanted:
            return
        say(f"Making {VENV.name} for Python {sys.version.split()[0]}")
        stamp.unlink(missing_ok=True)
        subprocess.run([BASE_PYTHON, "-m", "venv", "--clear", "--without-pip", str(VENV)], check=True)
        packages = site_packages(deps)
        path_file = site_packages(VENV) / "_torch_spyre_deps.pth"
        path_file.write_text(f"import site; site.addsitedir({str(packages)!r})\n")
        for name, module in PACKAGES.modules:
            write_program(VENV / "bin" / name, f'#!/bin/sh\nexec "$(dirname "$0")/python" -m {module} "$@"\n')
        for name, path in PACKAGES.programs:
            (VENV / "bin" / name).symlink_to(os.path.normpath(packages / path))
        stamp.write_text(wanted)


def write_lock(cache: Path) -> None:
    """Resolve requirements/dev.in anew, in an environment that is thrown away."""
    scratch = cache / "lock.part"
    with locked(cache / "lock.lock"):
        check_disk(cache)
        say("Resolving requirements/dev.in")
        fresh_environment(scratch)
        pip_install(scratch, "-r", str(DIRECT))
        listed = subprocess.run(
            [str(scratch / "bin/python"), "-m", "pip", "freeze", "--all", "--exclude", "pip"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        header = [line for line in LOCK.read_text().splitlines(keepends=True) if line.startswith("#")]
        LOCK.write_text("".join(header) + listed)
        shutil.rmtree(scratch)


def main() -> None:
    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if sys.argv[1:] == ["lock"]:
            if PACKAGES is not WITH_GIL:
                sys.exit(f"error: {LOCK} is for {DIRECT} alone; what others get is written by hand")
            write_lock(cache)
        else:
            make_venv(install_packages(cache))
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {' '.join(map(str, error.cmd[:6]))} … failed with status {error.returncode}")
    except OSError as error:
        sys.exit(f"error: {error} (packages go to {cache}; TORCH_SPYRE_CACHE chooses another folder)")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; run the same command again to go on")
