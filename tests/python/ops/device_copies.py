"""Copies of the arguments of one call on another device.

A copy has the strides of the original, and tensors that share memory share it on the other device too, so that a call
sees the same overlaps on both.
"""

from __future__ import annotations

from typing import Any

import torch


class Copies:
    """The copies made for one call."""

    def __init__(self, device: str, only_first: bool = False) -> None:
        self.device = torch.device(device)
        self.only_first = only_first
        """Whether only the first argument of the call is to be copied."""
        self.leaves: list[torch.Tensor] = []
        """The copies that require a gradient, in the order in which they were met."""
        self._tensors: dict[int, torch.Tensor] = {}
        self._storages: dict[int, torch.Tensor] = {}
        self._originals: list[torch.Tensor] = []
        """Kept, so that no other tensor gets the identity of one that was copied."""

    def of(self, value: Any) -> Any:
        """`value` with all tensors in it copied, and with CPU devices and generators exchanged."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            parts = [self.of(each) for each in value]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if isinstance(value, dict):
            return {key: self.of(each) for key, each in value.items()}
        if isinstance(value, slice):
            return slice(self.of(value.start), self.of(value.stop), self.of(value.step))
        if value == torch.device("cpu") or (isinstance(value, str) and value == "cpu"):
            return self.device
        if isinstance(value, torch.Generator):
            return torch.Generator(self.device).manual_seed(value.initial_seed())
        return value

    def _tensor(self, original: torch.Tensor) -> torch.Tensor:
        known = self._tensors.get(id(original))
        if known is None:
            self._originals.append(original)
            known = self._copied(original)
            if original.requires_grad:
                known = known.detach().requires_grad_()
                self.leaves.append(known)
            self._tensors[id(original)] = known
        return known

    def _copied(self, original: torch.Tensor) -> torch.Tensor:
        plain = original.detach()
        if type(plain) not in (torch.Tensor, torch.nn.Parameter) or plain.layout != torch.strided:
            return plain.clone().to(self.device)
        if plain.is_quantized or plain.is_nested:
            return plain.clone().to(self.device)
        if plain.is_conj():
            return self._copied(plain.conj()).conj()
        if plain.is_neg():
            return torch._neg_view(self._copied(torch._neg_view(plain)))
        storage = self._storage(plain.untyped_storage()).untyped_storage()
        copy = torch.empty(0, dtype=plain.dtype, device=self.device)
        return copy.set_(storage, plain.storage_offset(), plain.shape, plain.stride())

    def _storage(self, storage: torch.UntypedStorage) -> torch.Tensor:
        key = storage._cdata
        if key not in self._storages:
            everything = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            self._storages[key] = everything.clone().to(self.device)
        return self._storages[key]
