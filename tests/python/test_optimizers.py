"""Optimizers and what goes with them on spyre give what they give on CPU, in every form that they have."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm, parameters_to_vector, vector_to_parameters

INPUTS = torch.linspace(-1, 1, 12).reshape(4, 3)

NAMES = [
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "LBFGS",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
]
FORMS: list[dict[str, bool]] = [
    {},
    {"foreach": True},
    {"foreach": False},
    {"fused": True},
    {"capturable": True},
    {"maximize": True},
    {"amsgrad": True},
]


def combinations() -> Iterator[Any]:
    for name in NAMES:
        accepted = inspect.signature(getattr(optim, name)).parameters
        for form in FORMS:
            if set(form) <= set(accepted):
                yield pytest.param(name, form, id="-".join([name, *form]))


def trained(device: str, name: str, options: dict[str, bool]) -> tuple[list[float], torch.Tensor]:
    """Losses and weights of three steps."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(3, 3).to(device))
    optimizer = getattr(optim, name)([weight], lr=0.01, **options)
    inputs, losses = INPUTS.to(device), []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.mse_loss((inputs @ weight).tanh(), inputs)
        loss.backward()
        losses.append(loss.item())
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return losses, weight.detach()


@pytest.mark.parametrize(("name", "options"), list(combinations()))
def test_follows_the_cpu(name: str, options: dict[str, bool]) -> None:
    # The CPU has no capturable form; its results are those of the plain one.
    expected = trained("cpu", name, {key: value for key, value in options.items() if key != "capturable"})
    actual = trained("spyre", name, options)
    assert actual[1].is_spyre
    assert actual[0] == pytest.approx(expected[0], rel=1e-5)
    torch.testing.assert_close(actual[1].cpu(), expected[1], rtol=1e-5, atol=1e-6)


def test_every_optimizer_is_tested() -> None:
    there = {name for name, each in vars(optim).items() if inspect.isclass(each) and issubclass(each, optim.Optimizer)}
    assert there - set(NAMES) <= {"Optimizer", "SparseAdam"}, "SparseAdam is for sparse gradients"


def test_default_is_foreach_as_with_cuda() -> None:
    from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices

    assert "spyre" in _get_foreach_kernels_supported_devices()


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_state_moves_with_its_dictionary(name: str) -> None:
    """A state saved on the CPU goes on on the device."""
    results = []
    for device in ("cpu", "spyre"):
        weight = nn.Parameter(INPUTS.clone())
        options: dict[str, Any] = {"momentum": 0.9} if name == "SGD" else {}
        optimizer = getattr(optim, name)([weight], lr=0.1, **options)
        weight.square().sum().backward()
        optimizer.step()
        state = copy.deepcopy(optimizer.state_dict())
        moved = nn.Parameter(weight.detach().to(device))
        other = getattr(optim, name)([moved], lr=0.1, **options)
        other.load_state_dict(state)
        moved.square().sum().backward()
        other.step()
        buffer = other.state[moved]["momentum_buffer" if name == "SGD" else "exp_avg"]
        assert buffer.device == moved.device
        results.append((moved.detach().cpu(), buffer.cpu()))
    torch.testing.assert_close(results[1], results[0])


def test_differentiable_steps() -> None:
    """A gradient through two steps, with respect to the rate."""
    results = []
    for device in ("cpu", "spyre"):
        rate = torch.tensor(0.1, device=device, requires_grad=True)
        weight = INPUTS.clone().to(device).requires_grad_()
        moved = weight.clone()
        optimizer = optim.SGD([moved], lr=rate, differentiable=True, foreach=False)
        for _ in range(2):
            moved.grad = torch.full_like(moved, 0.5)
            optimizer.step()
        moved.square().sum().backward()
        assert rate.grad is not None
        results.append(rate.grad.cpu())
    torch.testing.assert_close(results[1], results[0])


def test_learning_rate_as_a_tensor_and_schedules() -> None:
    results = []
    for device in ("cpu", "spyre"):
        weight = nn.Parameter(INPUTS.clone().to(device))
        optimizer = optim.AdamW([weight], lr=torch.tensor(0.1), foreach=False)
        scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
        for _ in range(3):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
            scheduler.step()
        results.append(weight.detach().cpu())
    torch.testing.assert_close(results[1], results[0])


def test_averaged_models() -> None:
    results = []
    for device in ("cpu", "spyre"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(device)
        averaged = optim.swa_utils.AveragedModel(model, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9))
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(INPUTS.to(device)).square().sum().backward()
            optimizer.step()
            averaged.update_parameters(model)
        optim.swa_utils.update_bn([INPUTS.to(device)], averaged, device=torch.device(device))
        results.append([value.detach().cpu() for value in averaged.state_dict().values()])
    torch.testing.assert_close(results[1], results[0])


class TestClipping:
    @staticmethod
    def parameters(device: str) -> list[nn.Parameter]:
        made = [nn.Parameter(INPUTS.to(device)), nn.Parameter(INPUTS.to(device) * 2)]
        sum((parameter**2).sum() for parameter in made).backward()
        return made

    @pytest.mark.parametrize("foreach", [None, True, False])
    @pytest.mark.parametrize("norm", [2.0, 1.0, float("inf")])
    def test_by_norm(self, foreach: bool | None, norm: float) -> None:
        results = []
        for device in ("cpu", "spyre"):
            parameters = self.parameters(device)
            total = clip_grad_norm_(parameters, 0.5, norm_type=norm, foreach=foreach if device == "spyre" else None)
            assert total.device.type == device
            gradients = [parameter.grad for parameter in parameters]
            after = get_total_norm([grad for grad in gradients if grad is not None], norm)
            results.append([total.cpu(), after.cpu(), *(grad.cpu() for grad in gradients if grad is not None)])
        torch.testing.assert_close(results[1], results[0])

    @pytest.mark.parametrize("foreach", [None, True, False])
    def test_by_value(self, foreach: bool | None) -> None:
        parameters = self.parameters("spyre")
        clip_grad_value_(parameters, 0.25, foreach=foreach)
        for parameter, expected in zip(parameters, self.parameters("cpu"), strict=True):
            assert parameter.grad is not None
            assert expected.grad is not None
            assert torch.equal(parameter.grad.cpu(), expected.grad.clamp(-0.25, 0.25))

    def test_what_is_not_finite(self) -> None:
        parameter = nn.Parameter(torch.ones(2, device="spyre"))
        parameter.grad = torch.tensor([1.0, float("nan")], device="spyre")
        with pytest.raises(RuntimeError, match="The total norm of order 2.0 for gradients .* is non-finite"):
            clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)


def test_vectors_of_parameters() -> None:
    model = nn.Linear(2, 2).to("spyre")
    vector = parameters_to_vector(model.parameters())
    assert vector.is_spyre
    vector_to_parameters(torch.arange(6.0, device="spyre"), model.parameters())
    assert model.bias.tolist() == [4, 5]


def test_hooks_of_optimizers() -> None:
    weight = nn.Parameter(torch.ones(2, device="spyre"))
    seen: list[str] = []
    optimizer = optim.SGD([weight], lr=1.0)

    def hook(optimizer: optim.Optimizer, *_: object) -> None:
        seen.append(optimizer.param_groups[0]["params"][0].device.type)

    optimizer.register_step_pre_hook(hook)
    optimizer.register_step_post_hook(hook)
    weight.sum().backward()
    optimizer.step()
    assert seen == ["spyre", "spyre"]
