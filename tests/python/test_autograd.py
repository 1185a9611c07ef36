"""Autograd on spyre beyond a plain backward: second derivatives, hooks, checkpoints, custom functions, forward mode."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import register_multi_grad_hook, save_on_cpu, saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

from conftest import on_both

# torch's own, for what its forward mode is made of.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script.* is deprecated")

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def leaf(values: torch.Tensor = X, device: str = "spyre") -> torch.Tensor:
    return values.detach().clone().to(device).requires_grad_()


def layer(device: torch.device | str, *sizes: int) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(*(sizes or (3, 3))).to(device)


def test_second_derivatives_of_layers() -> None:
    def derivatives(x: torch.Tensor) -> object:
        torch.manual_seed(2)
        model = nn.Sequential(
            nn.Conv1d(1, 2, 2), nn.GELU(), nn.Flatten(), nn.LayerNorm(4), nn.Linear(4, 2), nn.Softmax(1)
        ).to(x.device)
        (first,) = torch.autograd.grad(model(x[:, None]).pow(2).sum(), x, create_graph=True)
        first.pow(2).sum().backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        return [first.detach(), x.grad, *gradients]

    on_both(derivatives, leaf(device="cpu"))


def test_numerical_derivatives() -> None:
    x = torch.randn(3, 3, dtype=torch.double).to("spyre").requires_grad_()
    assert torch.autograd.gradcheck(lambda a: (a @ a).sin(), x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(lambda a: (a @ a).sin(), x)


def test_functional_derivatives() -> None:
    def derivatives(x: torch.Tensor) -> object:
        return [
            torch.autograd.functional.jacobian(torch.sin, x),
            torch.autograd.functional.hessian(lambda a: (a**3).sum(), x, vectorize=True),
            torch.autograd.functional.vhp(lambda a: (a**3).sum(), x, x)[1],
        ]

    on_both(derivatives, X)


def test_batched_gradients() -> None:
    def gradients(x: torch.Tensor) -> object:
        return torch.autograd.grad(x.sin().sum(0), x, torch.eye(3, device=x.device), is_grads_batched=True)

    on_both(gradients, leaf(device="cpu"))


def test_forward_mode() -> None:
    def tangent(x: torch.Tensor) -> object:
        with forward_ad.dual_level():
            return tuple(forward_ad.unpack_dual(forward_ad.make_dual(x, x * 2).exp()))

    on_both(tangent, X)


class TestHooks:
    def test_run_on_a_device_thread(self) -> None:
        threads: list[int] = []
        product = leaf() * 3
        product.register_hook(lambda grad: threads.append(threading.get_ident()))
        product.sum().backward()
        assert len(threads) == 1
        assert threads[0] != threading.get_ident()

    @pytest.mark.parametrize("device", ["cpu", "spyre"])
    def test_of_modules_and_parameters(self, device: str) -> None:
        log: list[tuple[str, str]] = []

        def seen(name: str, module: nn.Module, *grads: Any) -> None:
            log.append((name, grads[-1][0].device.type))

        model = nn.Sequential(layer(device), nn.ReLU())
        model.register_forward_pre_hook(lambda module, given: log.append(("pre", given[0].device.type)))
        model.register_forward_hook(lambda module, given, output: log.append(("forward", output.device.type)))
        model.register_full_backward_pre_hook(partial(seen, "backward pre"))
        model.register_full_backward_hook(partial(seen, "backward"))
        weight = next(model.parameters())
        weight.register_post_accumulate_grad_hook(lambda parameter: log.append(("weight", parameter.device.type)))
        output = model(leaf(device=device))
        output.register_hook(lambda grad: grad * 2)
        output.sum().backward()
        assert [name for name, _ in log] == ["pre", "forward", "backward pre", "weight", "backward"]
        assert {type_ for _, type_ in log} == {device}

    def test_that_change_gradients(self) -> None:
        def gradient(x: torch.Tensor) -> object:
            product = x * x
            product.register_hook(lambda grad: grad * 10)
            product.sum().backward()
            return x.grad

        on_both(gradient, leaf(device="cpu"))

    def test_for_several_gradients(self) -> None:
        seen: list[bool] = []
        first, second = leaf(), leaf()
        register_multi_grad_hook([first, second], lambda grads: seen.append(all(grad.is_spyre for grad in grads)))
        (first * second).sum().backward()
        assert seen == [True]

    def test_for_saved_tensors(self) -> None:
        packed: list[str] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            packed.append(tensor.device.type)
            return tensor.cpu()

        x = leaf()
        with saved_tensors_hooks(pack, lambda tensor: tensor.to("spyre")):
            x.sin().mul(x).sum().backward()
        assert packed == ["spyre"] * 3
        torch.testing.assert_close(x.grad.cpu(), X.cos() * X + X.sin())

    def test_saving_on_the_cpu_frees_device_memory(self) -> None:
        inputs = torch.ones(1 << 18, device="spyre", requires_grad=True)
        before = torch.spyre.memory_allocated()
        with save_on_cpu(pin_memory=True):
            output = inputs.exp().sum()
        assert torch.spyre.memory_allocated() - before < 1 << 18
        output.backward()
        torch.testing.assert_close(inputs.grad.cpu(), torch.ones(1 << 18).exp())


class TestCheckpoints:
    @staticmethod
    def gradients(run: Callable[[Callable[[torch.Tensor], torch.Tensor], torch.Tensor], torch.Tensor]) -> list[Any]:
        """Gradients through a dropout, after which the device's generator has moved on, and the next numbers drawn."""
        module, x = layer("spyre"), leaf()
        torch.manual_seed(5)
        output = run(lambda given: functional.dropout(module(given)), x)
        torch.rand(7, device="spyre")
        output.pow(2).sum().backward()
        return [output.detach(), x.grad, module.weight.grad, torch.rand(3, device="spyre")]

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_keep_the_random_state(self, reentrant: bool) -> None:
        expected = self.gradients(lambda function, x: function(x))
        actual = self.gradients(partial(checkpoint, use_reentrant=reentrant))
        for one, other in zip(actual, expected, strict=True):
            assert torch.equal(one.cpu(), other.cpu())

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_draw_anew_if_told_to(self, reentrant: bool) -> None:
        expected = self.gradients(lambda function, x: function(x))
        actual = self.gradients(partial(checkpoint, use_reentrant=reentrant, preserve_rng_state=False))
        assert not torch.equal(actual[1].cpu(), expected[1].cpu())

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_under_autocast(self, reentrant: bool) -> None:
        results = []
        for checkpointed in (False, True):
            module, x = layer("spyre"), leaf()
            with torch.autocast("spyre", dtype=torch.bfloat16):
                output = checkpoint(module, x, use_reentrant=reentrant) if checkpointed else module(x)
            assert output.dtype == torch.bfloat16
            output.float().pow(2).sum().backward()
            results.append((x.grad.cpu(), module.weight.grad.cpu()))
        assert torch.equal(results[0][0], results[1][0])
        assert torch.equal(results[0][1], results[1][1])

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_of_a_sequence(self, reentrant: bool) -> None:
        def gradient(x: torch.Tensor) -> object:
            torch.manual_seed(6)
            model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4))).to(x.device)
            checkpoint_sequential(model, 2, x, use_reentrant=reentrant).sum().backward()
            return x.grad

        on_both(gradient, leaf(device="cpu"))

    def test_free_what_they_recompute(self) -> None:
        def peak(run: Callable[..., torch.Tensor]) -> int:
            x = torch.ones(1 << 18, device="spyre", requires_grad=True)
            before = torch.spyre.memory_allocated()
            output = x
            for _ in range(4):
                output = run(lambda given: given.sin().cos().exp(), output)
            used: int = torch.spyre.memory_allocated() - before
            output.sum().backward()
            return used

        assert peak(partial(checkpoint, use_reentrant=False)) * 2 <= peak(lambda function, x: function(x))

    def test_that_keep_some_operators(self) -> None:
        def gradient(x: torch.Tensor) -> object:
            contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
            checkpoint(lambda a: (a @ a.t()).sin(), x, use_reentrant=False, context_fn=contexts).sum().backward()
            return x.grad

        on_both(gradient, leaf(device="cpu"))


class Tripled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = ctx.saved_tensors[0]
        return grads[0] * x


def test_custom_functions() -> None:
    def results(x: torch.Tensor) -> object:
        return [
            torch.func.vmap(Tripled.apply)(x),
            torch.func.grad(lambda a: Tripled.apply(a).sum())(x),
        ]

    on_both(results, X)


def test_anomalies_are_named() -> None:
    zeros = torch.zeros(2, device="spyre", requires_grad=True)
    with (
        pytest.warns(UserWarning, match="Anomaly Detection has been enabled"),
        pytest.warns(UserWarning, match="Error detected in DivBackward0"),
        pytest.raises(RuntimeError, match="Function 'DivBackward0' returned nan values"),
        torch.autograd.detect_anomaly(),
    ):
        (zeros * 0 / zeros).sum().backward()


def test_gradient_that_is_changed_in_place_is_noticed() -> None:
    x = leaf()
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        y.sum().backward()


def test_inference_mode() -> None:
    with torch.inference_mode():
        made = torch.ones(2, device="spyre") + 1
    assert made.is_inference()
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
        made.add_(1)
