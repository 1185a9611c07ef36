"""Pickles of plain data, read without running anything that they name.

A pickle is a program: its opcodes may import any function and call it. This reader interprets only those that build
None, booleans, numbers, strings, bytes, lists, tuples, dicts and sets, of protocols 0 to 5, and refuses all others,
with the name of what was asked for. It takes the opcodes from `pickletools.genops`, which checks every length against
the data, and keeps its memo in a dict: a file can neither claim more memory than a multiple of its size, nor recurse.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Sequence
from typing import Any

from torch_spyre.memory_snapshots.errors import SnapshotError

_LFS_POINTER = b"version https://git-lfs"


def load(data: bytes, source: str) -> Any:
    """The object that a pickle describes; `source` names the file in errors.

    Raises SnapshotError if the pickle is broken, or asks for anything but plain data.
    """
    if data.startswith(_LFS_POINTER):
        raise SnapshotError(f"{source}: this is a pointer of Git LFS, not the file itself: run `git lfs pull`")
    machine, position = _Machine(), 0
    try:
        for opcode, argument, found_at in pickletools.genops(data):
            position = found_at or 0
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.step(opcode.name, argument)
    except _RefusedError as refused:
        raise SnapshotError(f"{source}: byte {position}: refused to load {refused}: expected plain data only") from None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise SnapshotError(
            f"{source}: expected a pickle, found a fault at or after byte {position}: {error}"
        ) from None
    raise AssertionError("genops ends with STOP or raises")


class _RefusedError(Exception):
    """Names what a pickle asked for and does not get."""


_ARGUMENT_IS_VALUE = [
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
]  # fmt: skip


class _Machine:
    """The stack, the stacks below the marks, and the memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._builders = self._table_of_builders()
        self._changers = self._table_of_changers()

    def step(self, name: str, argument: Any) -> None:
        """Interprets one opcode."""
        if name in self._builders:
            value = self._builders[name](argument)  # May change what the stack is.
            self.stack.append(value)
        elif name in self._changers:
            self._changers[name](argument)
        else:
            raise _RefusedError(self._what_is_asked_for(name, argument))

    def _table_of_builders(self) -> dict[str, Callable[[Any], Any]]:
        """Opcodes that leave a new value on the stack."""
        return dict.fromkeys(_ARGUMENT_IS_VALUE, lambda argument: argument) | {
            "NONE": lambda _: None,
            "NEWTRUE": lambda _: True,
            "NEWFALSE": lambda _: False,
            "EMPTY_TUPLE": lambda _: (),
            "EMPTY_LIST": lambda _: [],
            "EMPTY_DICT": lambda _: {},
            "EMPTY_SET": lambda _: set(),
            "TUPLE1": lambda _: self._top(1),
            "TUPLE2": lambda _: self._top(2),
            "TUPLE3": lambda _: self._top(3),
            "TUPLE": lambda _: tuple(self._since_mark()),
            "LIST": lambda _: self._since_mark(),
            "DICT": lambda _: _update({}, self._since_mark()),
            "FROZENSET": lambda _: frozenset(_atoms(self._since_mark())),
            "DUP": lambda _: self.stack[-1],
            **dict.fromkeys(["GET", "BINGET", "LONG_BINGET"], lambda index: self._memo[index]),
        }

    def _table_of_changers(self) -> dict[str, Callable[[Any], object]]:
        """Opcodes that change what is there."""
        return {
            "PROTO": lambda _: None,
            "FRAME": lambda _: None,
            "MARK": lambda _: self._mark(),
            "POP": lambda _: self._pop(),
            "POP_MARK": lambda _: self._since_mark(),
            "APPEND": lambda _: self._add_to(list, self._top(1)),
            "APPENDS": lambda _: self._add_to(list, self._since_mark()),
            "SETITEM": lambda _: self._add_to(dict, self._top(2)),
            "SETITEMS": lambda _: self._add_to(dict, self._since_mark()),
            "ADDITEMS": lambda _: self._add_to(set, self._since_mark()),
            **dict.fromkeys(["PUT", "BINPUT", "LONG_BINPUT"], self._remember),
            "MEMOIZE": lambda _: self._remember(len(self._memo)),
        }

    def _mark(self) -> None:
        self._below.append(self.stack)
        self.stack = []

    def _since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self._below.pop()
        return items

    def _pop(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self._since_mark()

    def _top(self, count: int) -> tuple[Any, ...]:
        if len(self.stack) < count:
            raise IndexError("too little on the stack")
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        return items

    def _add_to(self, kind: type[list[Any] | dict[Any, Any] | set[Any]], items: Sequence[Any]) -> None:
        target: object = self.stack[-1]
        if type(target) is not kind:
            raise TypeError(f"expected a {kind.__name__} to add to, found a {type(target).__name__}")
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, dict):
            _update(target, items)
        elif isinstance(target, set):
            target.update(_atoms(items))

    def _remember(self, index: int) -> None:
        self._memo[index] = self.stack[-1]

    def _what_is_asked_for(self, name: str, argument: Any) -> str:
        if name in ("GLOBAL", "INST"):
            return "the global " + ".".join(str(argument).split(" ", 1))
        if name == "STACK_GLOBAL":
            module, attribute = self._top(2)
            named = isinstance(module, str) and isinstance(attribute, str)
            return f"the global {module}.{attribute}" if named else "a global without a name"
        if "PERSID" in name:
            return "an object by a persistent id"
        if name.startswith("EXT"):
            return f"the extension {argument}"
        return f"an object by the opcode {name}"


def _update(target: dict[Any, Any], items: Sequence[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise ValueError("a key without a value")
    target.update(zip(_atoms(items[::2]), items[1::2], strict=True))
    return target


def _atoms(keys: Sequence[Any]) -> Sequence[Any]:
    # CPython hashes nested tuples by recursion in C that nothing bounds: a deep one would end the process.
    for key in keys:
        if isinstance(key, tuple | frozenset):
            raise TypeError(f"expected a number, a string or bytes as a key, found a {type(key).__name__}")
    return keys
