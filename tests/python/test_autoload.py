"""`import torch` alone makes the device available and never fails; what is wrong is said by the first use."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

import torch_spyre
from conftest import RunScript

PACKAGE = Path(torch_spyre.__file__).parent
BINARY = torch_spyre._binary._find().name

BUILT_FOR = ".".join(torch.__version__.split(".")[:2])

FIRST_USES = [
    "torch.randn(2, device='spyre')",
    "torch.ones(2).to('spyre')",
    "torch.tensor([1.0], device='spyre')",
    "torch.ones(2).spyre()",
    "torch.spyre.current_device()",
    "torch.spyre.memory.pressure_stats()",
    "torch.spyre.synchronize()",
    "torch.spyre.Stream()",
    "torch.nn.Linear(2, 2).to('spyre')",
    "__import__('torch_spyre')",
]

UNUSABLE = """
import warnings
import torch                          # must not raise, nor say anything
assert torch.ones(2).sum() == 2
torch.manual_seed(3)                  # seeds every device there is
assert not torch.spyre.is_initialized()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert torch.spyre.is_available() is False
    assert torch.spyre.device_count() == 0
    print("warned", len(caught), caught[0].message)
for use in {uses!r}:
    for attempt in (1, 2):
        try:
            eval(use)
        except {error} as raised:
            print(use, "->", type(raised).__name__, raised)
        else:
            raise SystemExit(use + " did not raise")
"""


def unusable(error: str) -> str:
    return UNUSABLE.format(uses=FIRST_USES, error=error)


def test_import_torch_is_enough(run_script: RunScript) -> None:
    out = run_script(
        """
        import sys, torch
        assert "torch_spyre" in sys.modules
        print((torch.ones(2, device="spyre") + 1).sum().item())
        """
    ).check()
    assert out == "4.0\n"


def test_the_package_first(run_script: RunScript) -> None:
    out = run_script(
        """
        import torch_spyre, torch
        print((torch.ones(2, device="spyre") + 1).sum().item(), torch_spyre.flex.__name__)
        """
    ).check()
    assert out == "4.0 torch_spyre.flex\n"


def test_without_autoloading(run_script: RunScript) -> None:
    run_script(
        """
        import torch
        assert not hasattr(torch, "spyre")
        import torch_spyre
        assert torch.ones(2, device="spyre").is_spyre
        """,
        env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    ).check()


def test_bad_configuration(run_script: RunScript) -> None:
    result = run_script(unusable("ValueError"), env={"TORCH_SPYRE_ALLOC_CONF": "colour:blue"})
    out = result.check()
    assert result.err == ""
    raised = [line for line in out.splitlines() if "-> ValueError" in line]
    assert len(raised) == 2 * len(FIRST_USES)
    assert all("TORCH_SPYRE_ALLOC_CONF" in line and "colour" in line for line in raised)
    assert "warned 1 spyre is not available: " in out


def test_bad_configuration_leaves_accelerators_answering(run_script: RunScript) -> None:
    run_script(
        """
        import warnings, torch
        warnings.simplefilter("ignore")
        assert torch.accelerator.is_available() is False
        assert torch.accelerator.device_count() == 0
        try:
            torch.Generator(device="spyre")
        except RuntimeError as error:
            assert "colour" in str(error), error
        else:
            raise SystemExit("a generator without a device")
        """,
        env={"TORCH_SPYRE_ALLOC_CONF": "colour:blue"},
    ).check()


def test_the_package_raises_on_a_bad_configuration(run_script: RunScript) -> None:
    result = run_script("import torch_spyre", env={"TORCH_SPYRE_ALLOC_CONF": "colour:blue"})
    assert result.returncode == 1
    assert result.err.splitlines()[-1].startswith("ValueError: ")
    assert "colour" in result.err.splitlines()[-1]


def copy_for_other_torch(tmp_path: Path, content: bytes) -> dict[str, str]:
    """A copy of the package whose binary has `content`, and the environment in which it is the one imported."""
    shutil.copytree(PACKAGE, tmp_path / "torch_spyre", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copytree(PACKAGE.parent / "_torch_spyre_autoload", tmp_path / "_torch_spyre_autoload")
    (tmp_path / "torch_spyre" / BINARY).write_bytes(content)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture
def binary() -> bytes:
    return Path(torch_spyre._binary._find()).read_bytes()


def test_other_torch(run_script: RunScript, tmp_path: Path, binary: bytes) -> None:
    marker = f"TORCH_SPYRE_BUILT_FOR_TORCH={BUILT_FOR};".encode()
    assert marker in binary
    other = "2.13" if BUILT_FOR == "2.12" else "2.12"
    env = copy_for_other_torch(tmp_path, binary.replace(marker, f"TORCH_SPYRE_BUILT_FOR_TORCH={other};".encode()))
    result = run_script(unusable("ImportError"), env=env)
    out = result.check()
    assert result.err == ""
    said = f"torch_spyre was built for PyTorch {other}, but PyTorch {torch.__version__} is installed. Rebuild it"
    assert out.count(said) == 2 * len(FIRST_USES) + 1
    assert "pip install --no-build-isolation" in out


def test_other_torch_is_not_loaded(run_script: RunScript, tmp_path: Path) -> None:
    # Loading this would be an error of another kind: it is no library at all.
    env = copy_for_other_torch(tmp_path, b"TORCH_SPYRE_BUILT_FOR_TORCH=1.99; but no library")
    result = run_script("import torch_spyre", env=env)
    assert "ImportError: torch_spyre was built for PyTorch 1.99" in result.err


def test_binary_without_a_marker(run_script: RunScript, tmp_path: Path) -> None:
    env = copy_for_other_torch(tmp_path, b"nothing of the kind")
    assert "does not say which PyTorch it was built for" in run_script("import torch_spyre", env=env).err


def test_no_binary(run_script: RunScript, tmp_path: Path) -> None:
    env = copy_for_other_torch(tmp_path, b"")
    (tmp_path / "torch_spyre" / BINARY).unlink()
    result = run_script("import torch; print('torch works'); import torch_spyre", env=env)
    assert result.out == "torch works\n"
    assert "has no extension module" in result.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("free_threaded", "suffixes", "found"),
    [
        (False, [".cpython-313-x86_64-linux-gnu.so", ".abi3.so", ".so"], "_C.abi3.so"),
        (True, [".cpython-313t-x86_64-linux-gnu.so", ".abi3.so", ".so"], "_C.cpython-313t-x86_64-linux-gnu.so"),
    ],
)
def test_builds_for_both_kinds_of_interpreter_lie_side_by_side(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_threaded: bool, suffixes: list[str], found: str
) -> None:
    """A free-threaded one looks for files of the stable ABI too, but must not load them."""
    module = torch_spyre._binary
    monkeypatch.setattr(module, "__file__", str(tmp_path / "_binary.py"))
    monkeypatch.setattr(module, "_FREE_THREADED", free_threaded)
    monkeypatch.setattr(module, "EXTENSION_SUFFIXES", suffixes)
    for name in ("_C.abi3.so", "_C.cpython-313t-x86_64-linux-gnu.so"):
        (tmp_path / name).touch()
    assert module._find().name == found
    (tmp_path / found).unlink()
    with pytest.raises(ImportError, match="no extension module for this Python"):
        module._find()


def test_no_torch(run_script: RunScript, tmp_path: Path) -> None:
    result = run_script(
        f"""
        import sys
        class Without:
            def find_spec(self, name, path=None, target=None):
                if name == "torch":
                    raise ModuleNotFoundError("No module named 'torch'", name="torch")
        sys.meta_path.insert(0, Without())
        sys.path.insert(0, {str(PACKAGE.parent)!r})
        import torch_spyre
        """
    )
    assert result.returncode == 1
    assert result.err.splitlines()[-1].startswith("ImportError: torch_spyre needs PyTorch, which is not installed")


def test_another_device_took_the_slot(run_script: RunScript) -> None:
    out = run_script(
        """
        import torch
        torch.utils.rename_privateuse1_backend("other")
        try:
            import torch_spyre
        except RuntimeError as error:
            print(error)
        """,
        env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    ).check()
    assert "other" in out
