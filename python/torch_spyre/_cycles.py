"""Names what dead reference cycles hold: the functions that the extension calls in the middle of a recorded collection.

`explain` gets dead objects and says who holds the device memory of the tensors among them; `warn` issues the warnings.
Both leave no reference to any object behind, and run no code of the objects' classes: attributes are read from
dictionaries and slots, never through `getattr`.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from torch_spyre._libraries import Frame, is_installed, own_frame
from torch_spyre._lifecycle import core, lazy_init

if TYPE_CHECKING:
    from torch_spyre._C import Garbage

_CONTAINERS = (
    *(dict, list, tuple, set, frozenset),
    *(collections.OrderedDict, collections.defaultdict, collections.deque),
    *(types.CellType, types.FrameType, types.TracebackType, types.MethodType, types.BuiltinMethodType),
    *(torch.Tensor, torch.nn.Parameter),
)
"""What keeps objects for an owner, and says nothing about who that is."""

_TORCH: Any = torch._C  # Its stubs leave out what is used of it here.

_LONGEST_PATH = 12

_LONGEST_SEARCH_S = 365 * 24 * 3600.0

_MODULE_DICTIONARIES = frozenset({"_modules", "_parameters", "_buffers"})

_PARTS: dict[type, tuple[str, ...]] = {
    types.FunctionType: ("__closure__", "__defaults__", "__kwdefaults__", "__globals__", "__dict__", "__annotations__"),
    types.MethodType: ("__self__", "__func__"),
    types.CellType: ("cell_contents",),
    types.TracebackType: ("tb_frame", "tb_next"),
    types.FrameType: ("f_back", "f_globals"),
    functools.partial: ("func", "args", "keywords"),
}
"""Attributes of built-in types by which one object leads to another."""

_CLASS_DICTIONARY = type.__dict__["__dict__"]
_CLASS_BASES = type.__dict__["__mro__"]
_CLASS_MODULE = type.__dict__["__module__"]
_CLASS_NAME = type.__dict__["__qualname__"]

_EXCEPTION_PARTS = ("__traceback__", "__context__", "__cause__", "args")


class CycleWarning(UserWarning):
    """Much device memory was held by dead reference cycles only; see `torch.spyre.memory.record_cycles`."""


@dataclass(frozen=True)
class DeadCycles:
    """Device memory that only dead cycles hold: `nbytes` in all, and by holder, the largest first."""

    nbytes: int
    holdings: list[dict[str, Any]]


def dead_bytes(device: Any = None, *, timeout_s: float = 10.0) -> DeadCycles | None:
    """How much memory of a device only dead reference cycles hold now. Nothing is collected, no finalizer runs.

    At least so much: memory that C++ objects hold besides, such as what autograd saved for a backward pass, is not in
    it. None if the answer takes longer than `timeout_s` seconds, and on a free-threaded Python other than 3.13. On that
    all threads that run Python code are stopped meanwhile, as for a collection.
    """
    from torch_spyre._index import existing_index

    lazy_init()
    index = existing_index(device)
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)):
        raise TypeError(f"timeout_s={timeout_s!r} is not a number; expected seconds, at least 0")
    # No clock knows times that are much later than that.
    found = core().find_dead_cycles(index, min(timeout_s, _LONGEST_SEARCH_S))
    return None if found is None else DeadCycles(*found)


def install() -> None:
    """Tells the extension who names things."""
    core().set_cycle_explainer(explain, warn, torch._C.TensorBase, list(_CONTAINERS))


def warn(
    device: int, nbytes: int, cycles: int, name: str, path: str, filename: str, line: int, frames: list[Frame]
) -> None:
    """Warns about memory that dead cycles held, at the place where their holder is defined. `frames` is the stack that
    most of it was allocated on.
    """
    what = "a dead reference cycle" if cycles == 1 else f"{cycles} dead reference cycles"
    text = f"{human(nbytes)} on spyre:{device} held by {what} only"
    text += f", through {name}" + (f": {path}" if path else "")
    text += f"; allocated at {place(frames)}" if frames else ""
    warnings.warn_explicit(text, CycleWarning, filename or "<unknown>", line, registry=_SHOWN)


def place(frames: Sequence[Frame]) -> str:
    """The place that a stack, innermost frame first, stands for; see `own_frame`."""
    filename, line, name = own_frame(frames)
    return f"{shown(filename, line)} in {name}"


def shown(filename: str, line: int) -> str:
    """A place as people read it: relative to where the program was started, if it is there."""
    with contextlib.suppress(OSError):  # The folder may be gone.
        filename = filename.removeprefix(os.path.join(os.getcwd(), ""))
    return f"{filename}:{line}"


_SHOWN: dict[Any, Any] = {}
"""Warnings that were shown; the filters of `warnings` say which are shown again."""


def sayable(text: str) -> str:
    """A text as UTF-8 can say it: half surrogate pairs, which names of files and others may have, are escaped."""
    return text.encode(errors="backslashreplace").decode()


def human(nbytes: int) -> str:
    """A size as the out-of-memory error prints it."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >> shift:
            return f"{nbytes / (1 << shift):.2f} {unit}"
    return f"{nbytes} bytes"


_Described: TypeAlias = tuple[str, str, str, int, list[int]]


class _Holders:
    """Holders by device and name, numbered as they come. A cycle has one, which is where to break it."""

    def __init__(self, objects: list[Any], garbage: Garbage) -> None:
        self.objects = objects
        self.garbage = garbage
        self.numbers: dict[tuple[int, str], int] = {}
        self.first: list[int] = []
        self.cycles: list[dict[int, int]] = []  # By component an object on it.
        self.holder_of_component: dict[int, int] = {}

    def number(self, tensor: int, device: int) -> int:
        """The number of who holds a tensor."""
        owner, cyclic = self.garbage.holder(tensor)
        holder = owner if cyclic is None else self.on_cycle(cyclic)
        if holder is None or (owner is not None and not self.garbage.is_owner(holder)):
            holder = tensor if owner is None else owner
        number = self.numbers.setdefault((device, full_name(self.objects[holder])), len(self.first))
        if number == len(self.first):
            self.first.append(holder)
            self.cycles.append({})
        if cyclic is not None:
            self.cycles[number].setdefault(self.garbage.component(cyclic), cyclic)
        return number

    def on_cycle(self, nearest: int) -> int:
        """Who is named for a cycle: its nearest object of a class that the program defines itself, or else the nearest
        function of the program's, or else the nearest owner.
        """
        component = self.garbage.component(nearest)
        if component not in self.holder_of_component:
            around = filter(self.garbage.is_owner, self.garbage.cycle(nearest))
            own = [node for node in around if not is_library(self.objects[node])]
            own.sort(key=lambda node: type(self.objects[node]) is types.FunctionType)
            self.holder_of_component[component] = own[0] if own else nearest
        return self.holder_of_component[component]

    def described(self, made: _Made, with_paths: bool) -> list[_Described]:
        return [
            self._described(holder, list(cycles.values()), made, with_paths)
            for holder, cycles in zip(self.first, self.cycles, strict=True)
        ]

    def _described(self, holder: int, on_cycles: list[int], made: _Made, with_paths: bool) -> _Described:
        name = full_name(self.objects[holder])
        path = cycle_path([self.objects[node] for node in self.garbage.cycle(holder)], made) if with_paths else ""
        filename, line = definition(self.objects[holder])
        return sayable(name), sayable(path), sayable(filename), line, on_cycles


def explain(
    objects: list[Any], garbage: Garbage, tensors: list[int], frozen: bool
) -> tuple[list[tuple[int, int, int]], list[_Described], list[Any]]:
    """Who holds which device memory among dead objects.

    `tensors` are given by their place among the objects. Returns their storages: address, number of the holder, and how
    many tensors that are not among these share it; the holders: name, path around the cycle, file, line, and an object
    on each of its cycles; and what was made on the way and refers to the objects.

    To look for a path may make the dictionary of an object, which refers to what is in it. What `frozen` garbage holds
    is looked at again and again, and must stay what it is: its holders have no path.
    """
    holders = _Holders(objects, garbage)
    found: dict[int, tuple[int, int]] = {}
    uses: collections.Counter[int] = collections.Counter()
    for number in tensors:
        storage = storage_of(objects[number])
        if storage is None:
            continue
        implementation, address, device = storage
        uses[implementation] += 1
        if implementation not in found:
            found[implementation] = (address, holders.number(number, device))
    storages = [
        (address, holder, _TORCH._storage_Use_Count(implementation) - uses[implementation])
        for implementation, (address, holder) in found.items()
    ]
    made = _Made(objects)
    return storages, holders.described(made, not frozen), made.objects


def storage_of(tensor: Any) -> tuple[int, int, int] | None:
    """The storage of a tensor: its C++ object, its address and its device; None if it has none on a device of ours."""
    try:
        address = _TORCH._data_address(tensor)
        device = core().device_of(address)
        return None if device < 0 else (_TORCH._storage_address(tensor), address, device)
    except RuntimeError:  # NotImplementedError is one: sparse tensors, and others without a storage.
        return None


def full_name(held_by: Any) -> str:
    """What an owner is called: its class with its module, or the function."""
    special = _special_name(held_by)
    kind = type(held_by)
    module = _CLASS_MODULE.__get__(kind)
    name = str(_CLASS_NAME.__get__(kind))
    return special or (name if module in ("builtins", "__main__") else f"{module}.{name}")


def short_name(held_by: Any) -> str:
    """As `full_name`, without the module, and without the function that defines it."""
    name = _special_name(held_by) or str(_CLASS_NAME.__get__(type(held_by)))
    first, separator, last = name.rpartition("<locals>.")
    kind = first.split(" ")[0] + " " if separator and " " in first else ""
    return kind + last


def _special_name(held_by: Any) -> str | None:
    kind = type(held_by)
    if kind is types.FunctionType:
        return f"function {held_by.__qualname__}"
    if kind in (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType):
        return f"{kind.__name__} {held_by.__qualname__}"
    if kind is types.FrameType:
        return f"frame of {held_by.f_code.co_qualname}"
    if issubclass(kind, type):
        return f"class {_CLASS_NAME.__get__(held_by)}"
    return None


def definition(owner: Any) -> tuple[str, int]:
    """The file and the line that define an owner; ("", 0) if they are not known."""
    code = getattr(owner, "__code__", None) if type(owner) is types.FunctionType else None
    if type(owner) is types.FrameType:
        code = owner.f_code
    if code is None:
        members = _CLASS_DICTIONARY.__get__(type(owner)).values()
        functions = [member for member in members if type(member) is types.FunctionType]
        functions.sort(key=lambda function: function.__name__ != "__init__")
        code = functions[0].__code__ if functions else None
    return ("", 0) if code is None else (code.co_filename, code.co_firstlineno)


def is_library(owner: Any) -> bool:
    """Whether an owner is defined by Python or an installed package, rather than by the program."""
    filename, _ = definition(owner)
    return not filename or is_installed(filename)


class _Made:
    """Objects that reading attributes has made, or that refer to dead objects only since then."""

    def __init__(self, dead: list[Any]) -> None:
        self.dead = dead
        self.known: set[int] | None = None
        self.objects: list[Any] = []

    def note(self, thing: Any) -> None:
        if self.known is None:
            self.known = set(map(id, self.dead))
        if id(thing) not in self.known:
            self.known.add(id(thing))
            self.objects.append(thing)


def cycle_path(ring: list[Any], made: _Made) -> str:
    """A way around a cycle, such as `Trainer.callbacks[0] → Logger.trainer → Trainer`.

    `ring` has the objects, each of which refers to the next, and the last to the first; none if there is no cycle.
    """
    if not ring:
        return ""
    text = short_name(ring[0])
    names = 1
    reading: tuple[str, ...] | str | None = None  # How to read the keys of the container that comes next.
    for holder, held in pairwise([*ring, ring[0]]):
        step, reading = _step(holder, held, reading, made)
        text += step
        if type(held) not in _CONTAINERS or held is ring[0] or issubclass(type(held), BaseException):
            text += f" → {short_name(held)}"
            names += 1
        if names > _LONGEST_PATH and held is not ring[0]:
            return f"{text} → … → {short_name(ring[0])}"
    return text


def _step(
    holder: Any, held: Any, reading: tuple[str, ...] | str | None, made: _Made
) -> tuple[str, tuple[str, ...] | str | None]:
    """How `holder` refers to `held`, and how what `held` refers to is called in turn."""
    if issubclass(type(holder), dict):
        return _key(holder, held, reading == "attributes")
    if type(holder) is tuple and isinstance(reading, tuple):  # The cells of a function.
        return next((f".{name}" for name, cell in zip(reading, holder, strict=False) if cell is held), ""), None
    sequence = next((kind for kind in (list, tuple, collections.deque) if issubclass(type(holder), kind)), None)
    if sequence is not None:
        for index, item in enumerate(sequence.__iter__(holder)):
            if item is held:
                return f"[{index}]", None
    if type(holder) is types.CellType:
        return "", None
    if type(holder) is types.FunctionType and held is holder.__closure__:
        return "", holder.__code__.co_freevars
    attributes = _attributes(holder, made)
    if attributes is not None:
        if held is attributes:
            return "", "attributes"
        name, reading = _key(attributes, held, True)
        if name or reading:
            return name, reading
    return next((f".{name}" for name, part in _parts(holder) if part is held), ""), None


def _key(holder: dict[Any, Any], held: Any, as_attributes: bool) -> tuple[str, str | None]:
    for key, value in dict.items(holder):
        if value is held:
            if as_attributes and type(key) is str:
                return ("", "attributes") if key in _MODULE_DICTIONARIES else (f".{key}", None)
            return f"[{key!r}]" if type(key) in (str, int) else "[…]", None
    return "", None


def _attributes(owner: Any, made: _Made) -> dict[str, Any] | None:
    """The dictionary of an object, or the variables of a frame."""
    if type(owner) is types.FrameType:
        variables = owner.f_locals
        if isinstance(variables, dict):  # Before 3.13 the frame keeps it.
            made.note(variables)
        return dict(variables)
    for members in _members(type(owner)):
        descriptor = members.get("__dict__")
        if isinstance(descriptor, types.GetSetDescriptorType):
            attributes = descriptor.__get__(owner)
            if type(attributes) is dict:
                made.note(attributes)
                return attributes
    return None


def _members(kind: type) -> Iterator[Mapping[str, Any]]:
    """What a class and its bases define, without asking their metaclass."""
    return (_CLASS_DICTIONARY.__get__(base) for base in _CLASS_BASES.__get__(kind))


def _parts(owner: Any) -> Iterator[tuple[str, Any]]:
    """Slots, and the attributes of built-in types."""
    kind = type(owner)
    names = _EXCEPTION_PARTS if issubclass(kind, BaseException) else _PARTS.get(kind, ())
    for members in _members(kind):
        for name, member in list(members.items()):
            if isinstance(member, types.MemberDescriptorType) or (
                name in names and isinstance(member, types.GetSetDescriptorType)
            ):
                try:
                    yield name, member.__get__(owner)
                except (AttributeError, ValueError):  # An empty slot or cell.
                    continue
