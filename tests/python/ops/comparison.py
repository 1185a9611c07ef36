"""What has to be the same on spyre and on CPU: structure, device, type, layout and values of results."""

from __future__ import annotations

import dataclasses

import torch

SPYRE = torch.device("spyre", 0)


@dataclasses.dataclass(frozen=True)
class Expectations:
    """How exactly results have to agree.

    `values` is false for uninitialised memory, `strides` where the device chooses the layout; no tolerance means
    torch's own.
    """

    values: bool = True
    strides: bool = True
    relative: float | None = None
    absolute: float | None = None

    def assert_same(self, actual: object, expected: object) -> None:
        """Asserts that `actual` is on spyre what `expected` is on CPU."""
        if isinstance(expected, torch.Tensor):
            assert isinstance(actual, torch.Tensor), f"{type(actual)} instead of a tensor"
            self._assert_same_tensor(actual, expected)
        elif isinstance(expected, (list, tuple)):
            assert isinstance(actual, (list, tuple)), f"{type(actual)} instead of {type(expected)}"
            assert len(actual) == len(expected)
            for one, other in zip(actual, expected, strict=True):
                self.assert_same(one, other)
        elif isinstance(expected, dict):
            assert isinstance(actual, dict)
            assert list(actual) == list(expected)
            self.assert_same(list(actual.values()), list(expected.values()))
        elif isinstance(expected, torch.device):
            assert isinstance(actual, torch.device)
            assert actual.type == SPYRE.type, f"the device {actual}"
        elif self.values:
            self._assert_same_value(actual, expected)

    def _assert_same_value(self, actual: object, expected: object) -> None:
        if isinstance(expected, (float, complex)):
            self._assert_close(actual, expected)
        elif isinstance(expected, torch.Generator):
            assert isinstance(actual, torch.Generator)
            assert torch.equal(actual.get_state(), expected.get_state())
        else:
            assert actual == expected

    def _assert_same_tensor(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        assert actual.device == SPYRE, f"a result is on {actual.device}"
        assert actual.dtype == expected.dtype, f"{actual.dtype} instead of {expected.dtype}"
        assert actual.layout == expected.layout, f"{actual.layout} instead of {expected.layout}"
        assert actual.requires_grad == expected.requires_grad, f"requires_grad={actual.requires_grad}"
        assert actual.is_nested == expected.is_nested
        if expected.is_nested:
            self.assert_same(actual.detach().unbind(), expected.detach().unbind())
            return
        assert actual.shape == expected.shape, f"{actual.shape} instead of {expected.shape}"
        if expected.layout == torch.strided:
            if self.strides:
                strides, wanted = effective_strides(actual), effective_strides(expected)
                assert strides == wanted, f"strides {strides} instead of {wanted}"
            assert actual.is_conj() == expected.is_conj()
            assert actual.is_neg() == expected.is_neg()
        elif expected.layout == torch.sparse_coo:
            assert actual.is_coalesced() == expected.is_coalesced()
        if self.values:
            self._assert_close(actual.detach().cpu(), expected.detach())

    def _assert_close(self, actual: object, expected: object) -> None:
        torch.testing.assert_close(actual, expected, rtol=self.relative, atol=self.absolute, equal_nan=True)


def effective_strides(tensor: torch.Tensor) -> list[int]:
    """Strides of the dimensions along which there is something to stride over."""
    if tensor.numel() == 0:
        return []
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def assert_same(actual: object, expected: object) -> None:
    Expectations().assert_same(actual, expected)
