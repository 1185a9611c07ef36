"""The allocator by itself, without torch. It is the submodule `flex` of the extension module."""

from __future__ import annotations

from torch_spyre._lifecycle import core as _core

_flex = _core().flex

__all__ = [name for name in dir(_flex) if not name.startswith("_")]

globals().update({name: getattr(_flex, name) for name in __all__})
