"""The outputs shown in the documents: renewed by their commands, and found out when they are out of date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/doc_examples.py"


def renew(document: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *options, str(document)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def page(tmp_path: Path, *examples: tuple[str, str]) -> Path:
    document = tmp_path / "page.md"
    document.write_text("".join(f"Text.\n\n<!-- {mark} -->\n```text\n{body}```\n\n" for mark, body in examples))
    return document


def test_outputs_are_renewed_and_the_rest_of_the_page_stays(tmp_path: Path) -> None:
    document = page(tmp_path, ("output of: echo one", ""), ("output of: printf '%s\\n' two\n  three", "old\n"))
    assert renew(document).returncode == 0
    text = document.read_text()
    assert text.count("Text.\n") == 2
    assert "```text\none\n```" in text
    assert "```text\ntwo\nthree\n```" in text
    assert renew(document, "--check").returncode == 0


@pytest.mark.parametrize(
    ("mark", "shown", "same"),
    [
        ("output of: echo 12 ms", "12 ms\n", True),
        ("output of: echo 12 ms", "13 ms\n", False),
        ("output (numbers vary) of: echo '|  9.5 ms |'", "| 12.25 ms |\n", True),
        ("output (numbers vary) of: echo 12 ms", "12 us\n", False),
        ("output (varies) of: echo anything", "else\n", True),
        ("output (exits 3) of: echo failed; exit 3", "failed\n", True),
        ("output (varies, exits 3) of: exit 2", "", False),
        ("output (varies) of: false", "", False),
        ("output (sometimes) of: true", "", False),
    ],
)
def test_check_finds_what_is_out_of_date_and_writes_nothing(tmp_path: Path, mark: str, shown: str, same: bool) -> None:
    document = page(tmp_path, (mark, shown))
    before = document.read_text()
    checked = renew(document, "--check")
    assert (checked.returncode == 0) == same, checked.stderr
    assert same or "page.md" in checked.stderr
    assert document.read_text() == before


def test_a_comment_without_its_block_is_found(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("<!-- output of: echo one -->\n\n```text\none\n```\n")
    checked = renew(document, "--check")
    assert checked.returncode == 1
    assert "1 of 1" in checked.stderr


def test_the_configuration_of_the_caller_does_not_reach_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_SPYRE_ALLOC_CONF", "devices:2")
    document = page(tmp_path, ("output of: echo ${TORCH_SPYRE_ALLOC_CONF-unset}", "unset\n"))
    assert renew(document, "--check").returncode == 0
