"""Random operators with generators of the device: reproducible by seed, the numbers of a CPU generator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

Draw = Callable[[str, torch.Generator], torch.Tensor]

DRAWS: dict[str, Draw] = {
    "rand": lambda device, g: torch.rand(9, device=device, generator=g),
    "randn": lambda device, g: torch.randn(9, device=device, generator=g),
    "randn complex": lambda device, g: torch.randn(9, device=device, generator=g, dtype=torch.complex64),
    "randint": lambda device, g: torch.randint(5, 90, (9,), device=device, generator=g),
    "randperm": lambda device, g: torch.randperm(30, device=device, generator=g),
    "uniform_": lambda device, g: torch.empty(9, device=device).uniform_(-2, 3, generator=g),
    "normal_": lambda device, g: torch.empty(9, device=device).normal_(1, 2, generator=g),
    "half normal_": lambda device, g: torch.empty(40, device=device, dtype=torch.half).normal_(generator=g),
    "strided normal_": lambda device, g: torch.zeros(6, 6, device=device).t()[::2].normal_(generator=g),
    "exponential_": lambda device, g: torch.empty(9, device=device).exponential_(2.0, generator=g),
    "geometric_": lambda device, g: torch.empty(9, device=device).geometric_(0.3, generator=g),
    "cauchy_": lambda device, g: torch.empty(9, device=device).cauchy_(generator=g),
    "log_normal_": lambda device, g: torch.empty(9, device=device).log_normal_(generator=g),
    "random_": lambda device, g: torch.empty(9, device=device, dtype=torch.int64).random_(generator=g),
    "bernoulli": lambda device, g: torch.bernoulli(torch.full((40,), 0.4, device=device), generator=g),
    "bernoulli_": lambda device, g: torch.empty(40, device=device).bernoulli_(0.4, generator=g),
    "bernoulli_ with probabilities": lambda device, g: torch.empty(40, device=device).bernoulli_(
        torch.full((40,), 0.4, device=device), generator=g
    ),
    "multinomial": lambda device, g: torch.multinomial(torch.arange(1.0, 9, device=device), 5, generator=g),
    "multinomial with replacement": lambda device, g: torch.multinomial(
        torch.arange(1.0, 9, device=device), 50, replacement=True, generator=g
    ),
    "normal of means": lambda device, g: torch.normal(torch.arange(9.0, device=device), 2.0, generator=g),
    "normal of both": lambda device, g: torch.normal(
        torch.arange(9.0, device=device), torch.arange(1.0, 10, device=device), generator=g
    ),
    "normal with out": lambda device, g: torch.normal(
        0.0, torch.arange(1.0, 10, device=device), generator=g, out=torch.empty(0, device=device)
    ),
    "poisson": lambda device, g: torch.poisson(torch.arange(9.0, device=device), generator=g),
    "binomial": lambda device, g: torch.binomial(
        torch.full((9,), 20.0, device=device), torch.full((9,), 0.4, device=device), generator=g
    ),
    "rrelu": lambda device, g: torch.rrelu(-torch.ones(9, device=device), training=True, generator=g),
    "trunc_normal_": lambda device, g: torch.nn.init.trunc_normal_(torch.empty(9, device=device), generator=g),
    "kaiming_uniform_": lambda device, g: torch.nn.init.kaiming_uniform_(torch.empty(3, 4, device=device), generator=g),
    "orthogonal_": lambda device, g: torch.nn.init.orthogonal_(torch.empty(4, 4, device=device), generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_seeds_reproduce(name: str) -> None:
    draw = DRAWS[name]
    default = torch.spyre.get_rng_state()
    generator = torch.Generator("spyre").manual_seed(31)
    first = draw("spyre", generator)
    assert first.device.type == "spyre"
    assert torch.equal(first.cpu(), draw("spyre", torch.Generator("spyre").manual_seed(31)).cpu())
    assert torch.equal(first.cpu(), draw("cpu", torch.Generator().manual_seed(31)))
    assert not torch.equal(first.cpu(), draw("spyre", generator).cpu())
    assert torch.equal(torch.spyre.get_rng_state(), default)


@pytest.mark.parametrize("name", DRAWS)
def test_generators_of_the_cpu_are_rejected(name: str) -> None:
    with pytest.raises(RuntimeError, match="Expected a 'spyre' device type for generator but found 'cpu'"):
        DRAWS[name]("spyre", torch.Generator())


@pytest.mark.parametrize(
    "distribution",
    [
        lambda device: torch.distributions.Gamma(torch.arange(1.0, 6, device=device), 2.0),
        lambda device: torch.distributions.Beta(torch.arange(1.0, 6, device=device), 2.0),
        lambda device: torch.distributions.Dirichlet(torch.arange(1.0, 6, device=device)),
        lambda device: torch.distributions.StudentT(torch.arange(3.0, 6, device=device)),
        lambda device: torch.distributions.MultivariateNormal(
            torch.zeros(3, device=device), torch.eye(3, device=device)
        ),
        lambda device: torch.distributions.Categorical(torch.arange(1.0, 6, device=device)),
        lambda device: torch.distributions.VonMises(torch.zeros(5, device=device), 2.0),
    ],
)
def test_distributions(distribution: Callable[[str], torch.distributions.Distribution]) -> None:
    drawn = {}
    for device in ("cpu", "spyre"):
        torch.manual_seed(12)
        drawn[device] = distribution(device).sample((4,))
    assert drawn["spyre"].device.type == "spyre"
    torch.testing.assert_close(drawn["spyre"].cpu(), drawn["cpu"])
