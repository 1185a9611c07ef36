"""Random numbers: those of a CPU generator with the same seed; generators can be saved and shared."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def test_manual_seed_gives_the_numbers_of_the_cpu() -> None:
    for draw in (
        lambda device: torch.randn(100, device=device),
        lambda device: torch.rand(5, 5, device=device),
        lambda device: torch.randint(0, 99, (50,), device=device),
        lambda device: torch.randperm(31, device=device),
        lambda device: torch.empty(20, device=device).exponential_(),
        lambda device: torch.bernoulli(torch.full((64,), 0.3, device=device)),
        lambda device: torch.multinomial(torch.ones(9, device=device), 4),
        lambda device: torch.normal(torch.zeros(8, device=device), 2.0),
        lambda device: functional.dropout(torch.ones(200, device=device), 0.4),
        lambda device: functional.dropout2d(torch.ones(2, 30, 2, 2, device=device), 0.4),
        lambda device: functional.rrelu(-torch.ones(40, device=device), training=True),
    ):
        torch.manual_seed(123)
        expected = draw("cpu")
        torch.manual_seed(123)
        assert torch.equal(draw("spyre").cpu(), expected)


def test_drawing_moves_only_the_devices_generator() -> None:
    cpu_state = torch.get_rng_state()
    first = torch.rand(4, device="spyre")
    dropped = functional.dropout(torch.ones(100, device="spyre"))
    assert torch.equal(torch.get_rng_state(), cpu_state)
    assert not torch.equal(torch.rand(4, device="spyre").cpu(), first.cpu())
    assert 0 < int((dropped == 0).sum()) < 100


def test_state_round_trip() -> None:
    state = torch.spyre.get_rng_state()
    assert state.device.type == "cpu"
    assert state.dtype == torch.uint8
    first = torch.rand(4, device="spyre")
    torch.spyre.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="spyre").cpu(), first.cpu())
    torch.spyre.set_rng_state_all([state])
    assert torch.equal(torch.spyre.get_rng_state_all()[0], state)


def test_seeds() -> None:
    torch.spyre.manual_seed(5)
    assert torch.spyre.initial_seed() == 5
    torch.spyre.seed()
    assert torch.spyre.initial_seed() != 5
    torch.spyre.manual_seed_all(2**63)
    assert torch.spyre.initial_seed() == 2**63
    torch.spyre.seed_all()
    assert torch.spyre.initial_seed() != 2**63


def test_fork_rng() -> None:
    before = torch.spyre.get_rng_state()
    with torch.random.fork_rng(devices=[0], device_type="spyre"):
        torch.rand(3, device="spyre")
        assert not torch.equal(torch.spyre.get_rng_state(), before)
    assert torch.equal(torch.spyre.get_rng_state(), before)


class TestGenerator:
    def test_is_used(self) -> None:
        generator = torch.Generator(device="spyre").manual_seed(9)
        assert generator.device == torch.device("spyre:0")
        default = torch.spyre.get_rng_state()
        drawn = torch.randn(6, device="spyre", generator=generator)
        assert torch.equal(drawn.cpu(), torch.randn(6, generator=torch.Generator().manual_seed(9)))
        assert torch.equal(torch.spyre.get_rng_state(), default)

    def test_of_another_device_is_rejected(self) -> None:
        with pytest.raises(RuntimeError, match="Expected a 'spyre' device type for generator but found 'cpu'"):
            torch.randn(3, device="spyre", generator=torch.Generator())
        with pytest.raises(RuntimeError, match="generator"):
            torch.randn(3, generator=torch.Generator(device="spyre"))

    def test_clone_is_independent(self) -> None:
        generator = torch.Generator(device="spyre").manual_seed(3)
        clone = generator.clone_state()
        first = torch.rand(3, device="spyre", generator=generator)
        assert torch.equal(torch.rand(3, device="spyre", generator=clone).cpu(), first.cpu())

    def test_pickle_and_deepcopy(self) -> None:
        generator = torch.Generator(device="spyre").manual_seed(4)
        torch.rand(3, device="spyre", generator=generator)
        copies = [pickle.loads(pickle.dumps(generator)), copy.deepcopy(generator)]
        expected = torch.rand(3, device="spyre", generator=generator).cpu()
        for other in copies:
            assert torch.equal(torch.rand(3, device="spyre", generator=other).cpu(), expected)

    def test_default_generator_is_one_object(self) -> None:
        generator = torch.ops.spyre.default_generator(0)
        generator.manual_seed(77)
        assert torch.spyre.initial_seed() == 77
        assert torch.equal(
            torch.rand(2, device="spyre", generator=generator).cpu(),
            torch.rand(2, generator=torch.Generator().manual_seed(77)),
        )

    def test_many_threads(self) -> None:
        generator = torch.Generator(device="spyre").manual_seed(1)
        drawn: list[torch.Tensor] = []

        def draw() -> None:
            for _ in range(50):
                drawn.append(torch.rand(16, device="spyre", generator=generator).cpu())

        threads = [threading.Thread(target=draw) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = torch.Generator().manual_seed(1)
        # Each draw is atomic, so in some order they are the draws of one generator.
        assert {tuple(each.tolist()) for each in drawn} == {
            tuple(torch.rand(16, generator=expected).tolist()) for _ in range(200)
        }


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_repeats_them(reentrant: bool) -> None:
    ones = torch.ones(1000, device="spyre", requires_grad=True)
    result = checkpoint(lambda a: functional.dropout(a * 3, 0.5), ones, use_reentrant=reentrant)
    result.sum().backward()
    assert torch.equal(ones.grad.cpu(), result.detach().cpu())
