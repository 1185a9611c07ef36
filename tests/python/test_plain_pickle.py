"""The restricted unpickler: plain data of all protocols, and nothing else, whatever the file tries."""

from __future__ import annotations

import collections
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

from torch_spyre.memory_snapshots import SnapshotError
from torch_spyre.memory_snapshots.plain_pickle import load

SHARED = ["the", "same"]
PLAIN = {
    "none": None,
    "truth": [True, False],
    "integers": [0, 255, 65535, -1, 1 << 31, 1 << 63, (1 << 64) - 1, -(1 << 70), 1 << 3000],
    "floats": [0.0, -1.5, 1e300],
    "text": ["", "plain", "Grüße\n\\ \U0001f40d", "x" * 300],
    "bytes": [SHARED, SHARED],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    3: {1.5: "float key", b"bytes".decode(): []},
    "many": list(range(2500)),
    "dict of many": {str(number): number for number in range(2500)},
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_of_every_protocol(protocol: int) -> None:
    loaded = load(pickle.dumps(PLAIN, protocol), "FILE")
    assert loaded == PLAIN
    assert loaded["bytes"][0] is loaded["bytes"][1]
    assert [type(value) for value in loaded["truth"]] == [bool, bool]


@pytest.mark.parametrize("protocol", [4, 5])
def test_bytes_and_sets_have_opcodes_since_protocol_4(protocol: int) -> None:
    value = [b"", b"\0\xff", {1, "two"}, frozenset({3})] + ([bytearray(b"mutable")] if protocol == 5 else [])
    assert load(pickle.dumps(value, protocol), "FILE") == value


class Malicious:
    """Runs a command when it is unpickled the careless way."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.witness),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_runs_nothing_and_is_named(protocol: int, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    data = pickle.dumps({"segments": [], "device_traces": Malicious(witness)}, protocol)
    with pytest.raises(SnapshotError, match=rf"^evil\.pickle: byte \d+: refused to load the global {os.name}\.mkdir:"):
        load(data, "evil.pickle")
    assert not witness.exists()
    pickle.loads(data)
    assert witness.exists(), "the pickle does what it is refused for"


@pytest.mark.parametrize(
    ("data", "refused"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "the global os.system"),
        (b"(S'true'\nios\nsystem\n.", "the global os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "the global os.system"),
        (b"\x80\x04K\x01K\x02\x93.", "a global without a name"),
        (pickle.dumps(collections.OrderedDict(a=1)), "the global collections.OrderedDict"),
        (pickle.dumps({1}, 2), "the global builtins.set|the global __builtin__.set"),
        (b"Psomething\n.", "an object by a persistent id"),
        (b"K\x01Q.", "an object by a persistent id"),
        (b"\x82\x01.", "the extension 1"),
        (b"(K\x01o.", "an object by the opcode OBJ"),
        (b"K\x01)R.", "an object by the opcode REDUCE"),
        (b"K\x01)\x81.", "an object by the opcode NEWOBJ"),
        (b"]}b.", "an object by the opcode BUILD"),
        (b"\x97.", "an object by the opcode NEXT_BUFFER"),
    ],
)
def test_what_is_not_plain_data_is_refused_by_name(data: bytes, refused: str) -> None:
    with pytest.raises(SnapshotError, match=f"FILE: byte \\d+: refused to load ({refused}): expected plain data only"):
        load(data, "FILE")


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "byte 0"),
        (b"<!DOCTYPE html>", "expected a pickle"),
        (pickle.dumps([1, 2, 3])[:-1], "pickle exhausted before seeing STOP"),
        (pickle.dumps("x" * 1000)[:50], "but only"),
        (b".", "byte 0"),
        (b"K\x01a.", "byte 2"),
        (b"K\x01K\x02a.", "expected a list to add to, found a int"),
        (b"]K\x01K\x02s.", "expected a dict to add to, found a list"),
        (b"}(K\x01u.", "a key without a value"),
        (b"}]K\x01s.", "unhashable"),
        (b"h\x07.", "byte 0"),
        (b"t.", "byte 0"),
        (b"I12x\n.", "invalid literal"),
        (b"L" + b"9" * 5000 + b"L\n.", "4300"),
    ],
)
def test_a_broken_pickle_says_where(data: bytes, fault: str) -> None:
    with pytest.raises(SnapshotError, match="^FILE: expected a pickle, found a fault at or after byte") as caught:
        load(data, "FILE")
    assert fault in str(caught.value)


def test_a_pointer_of_git_lfs_is_recognised() -> None:
    with pytest.raises(SnapshotError, match="git lfs pull"):
        load(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "FILE")


def test_a_large_index_of_the_memo_needs_no_large_memo() -> None:
    # CPython's own unpickler of that time makes room for every index below: here 32 GiB.
    data = b"]r" + struct.pack("<I", (1 << 31) - 1) + b"0j" + struct.pack("<I", (1 << 31) - 1) + b"."
    assert load(data, "FILE") == []


def test_a_length_beyond_the_end_reserves_nothing() -> None:
    for opcode in (b"\x8e", b"\x96", b"\x8d"):
        with pytest.raises(SnapshotError, match="but only 3 remain"):
            load(b"\x80\x05" + opcode + struct.pack("<Q", 1 << 45) + b"abc", "FILE")


def test_deep_nesting_recurses_nowhere() -> None:
    depth = 200_000
    nested = load(b")" + b"\x85" * depth + b".", "FILE")
    for _ in range(depth):
        (nested,) = nested
    assert nested == ()
    with pytest.raises(SnapshotError, match="as a key, found a tuple"):
        load(b"})" + b"\x85" * depth + b"K\x01s.", "FILE")
