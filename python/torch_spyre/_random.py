"""`torch.spyre`: seeds and states of the devices' default generators.

A spyre generator gives the numbers that a CPU generator with the same seed gives. Seeding does nothing where the
devices cannot be used, because `torch.manual_seed` seeds all devices.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torch_spyre import _lifecycle
from torch_spyre._index import DeviceLike, existing_index
from torch_spyre._lifecycle import core, lazy_init


def _default_generator(device: DeviceLike = None) -> torch.Generator:
    generator: torch.Generator = torch.ops.spyre.default_generator(existing_index(device))
    return generator


def _seedable() -> bool:
    return _lifecycle.usable() and not core().is_in_bad_fork()


def get_rng_state(device: DeviceLike = "spyre") -> torch.Tensor:
    """The state of a device's generator, as a ByteTensor on the CPU."""
    lazy_init()
    return _default_generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators, in the order of the devices."""
    lazy_init()
    return [get_rng_state(index) for index in range(core().device_count())]


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "spyre") -> None:
    """Sets the state of a device's generator to one that `get_rng_state` returned."""
    lazy_init()
    _default_generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of all devices' generators, given in the order of the devices."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator. Silently ignored where the devices cannot be used."""
    seed = int(seed)
    if _seedable():
        _default_generator().manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seeds all devices' generators. Silently ignored where the devices cannot be used."""
    seed = int(seed)
    if _seedable():
        for index in range(core().device_count()):
            _default_generator(index).manual_seed(seed)


def seed() -> None:
    """Seeds the current device's generator with a random number."""
    if _seedable():
        _default_generator().seed()


def seed_all() -> None:
    """Seeds all devices' generators with the same random number."""
    if _seedable():
        manual_seed_all(_default_generator(0).seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    lazy_init()
    return _default_generator().initial_seed()
