"""The allocator by itself, without torch. Sizes and offsets are bytes."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import ClassVar, Self, final

__all__ = [
    "Allocation",
    "AllocationDirective",
    "DeviceError",
    "FlexAllocator",
    "FlexError",
    "InvalidPlacementError",
    "InvalidSizeError",
    "MemoryType",
    "OutOfMemoryError",
    "PlacementPolicy",
    "PressureRequest",
    "RegionSetupError",
    "Topology",
    "UnknownAllocationError",
    "UnknownDomainError",
]

@final
class FlexAllocator:
    """An allocator of one device's memory."""

    @staticmethod
    def simulated(capacity_bytes: int, *, topology: Topology | None = None) -> FlexAllocator: ...
    def allocate(self, nbytes: int, directive: AllocationDirective | None = None) -> Allocation: ...
    def set_memory_pressure_callback(
        self, function: Callable[[PressureRequest], object] | None
    ) -> Callable[[PressureRequest], object] | None: ...
    def stats(self) -> dict[str, int]: ...
    def empty_cache(self) -> int: ...
    def validate(self) -> None: ...

@final
class Allocation:
    """Device memory that frees itself with the object, at the end of a `with` block, or through `free`."""

    @property
    def nbytes(self) -> int: ...
    @property
    def chunks(self) -> Sequence[tuple[int, int, int, int]]:
        """(region_id, offset, size, domain) of each chunk."""

    def free(self) -> None: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class AllocationDirective:
    """Where an allocation goes and what it is for. Without domains and without `near` it goes to domain 0."""

    def __new__(
        cls,
        policy: PlacementPolicy = ...,
        domains: Sequence[int] | None = None,
        *,
        near: Allocation | None = None,
        memory_type: MemoryType = ...,
    ) -> Self: ...
    @property
    def policy(self) -> PlacementPolicy: ...
    @property
    def domains(self) -> list[int]: ...
    @property
    def memory_type(self) -> MemoryType: ...

@final
class PlacementPolicy:
    """Any one of the domains, or one chunk in each."""

    Bind: ClassVar[PlacementPolicy]
    Interleave: ClassVar[PlacementPolicy]

@final
class MemoryType:
    """What a region holds; the two never mix."""

    Tensor: ClassVar[MemoryType]
    Program: ClassVar[MemoryType]

@final
class Topology:
    """Domains and regions of a device."""

    @staticmethod
    def uniform(total_bytes: int) -> Topology: ...
    @staticmethod
    def spyre(total_bytes: int, max_regions: int = 7, domains: int = 1) -> Topology: ...
    @property
    def domain_count(self) -> int: ...
    @property
    def regions(self) -> list[tuple[int, MemoryType, int]]:
        """(domain, memory type, size) of each region."""

    @property
    def tensor_capacity_bytes(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...

@final
class PressureRequest:
    """What a memory-pressure callback is told; `cause` is "exhausted" or "fragmented"."""

    @property
    def requested_bytes(self) -> int: ...
    @property
    def free_bytes(self) -> int: ...
    @property
    def largest_free_bytes(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def cause(self) -> str: ...
    @property
    def domains(self) -> list[int]: ...

class FlexError(Exception): ...

class OutOfMemoryError(FlexError):
    requested_bytes: int
    capacity_bytes: int
    free_bytes: int
    largest_free_bytes: int

class InvalidSizeError(FlexError): ...
class InvalidPlacementError(FlexError): ...
class UnknownAllocationError(FlexError): ...
class UnknownDomainError(FlexError): ...
class RegionSetupError(FlexError): ...
class DeviceError(FlexError): ...
