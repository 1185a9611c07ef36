"""`torch.autocast("spyre")` and `torch.amp.GradScaler("spyre")`: CUDA's types and the CPU's values."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional


class TestAutocast:
    A = torch.linspace(-1, 1, 16).reshape(4, 4)

    def run(
        self,
        function: Callable[..., torch.Tensor],
        *arguments: torch.Tensor,
        dtype: torch.dtype = torch.bfloat16,
    ) -> torch.Tensor:
        with torch.autocast("spyre", dtype=dtype):
            return function(*(argument.to("spyre") for argument in arguments))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_lower_precision(self, dtype: torch.dtype) -> None:
        for function in (
            torch.mm,
            torch.matmul,
            functional.linear,
            lambda a, b: torch.bmm(a[None], b[None]),
            lambda a, b: functional.conv2d(a[None, None], b[None, None, :2, :2]),
            lambda a, b: functional.scaled_dot_product_attention(a[None, None], b[None, None], b[None, None]),
        ):
            assert self.run(function, self.A, self.A, dtype=dtype).dtype == dtype

    def test_float32(self) -> None:
        half = self.A.to(torch.bfloat16)
        for function in (
            torch.exp,
            lambda a: a.softmax(-1),
            lambda a: functional.layer_norm(a, (4,)),
            torch.sum,
            lambda a: a.norm(),
        ):
            assert self.run(function, half).dtype == torch.float32

    def test_widest_type(self) -> None:
        half = self.A.to(torch.bfloat16)
        assert self.run(torch.dot, half[0], self.A[0]).dtype == torch.float32
        assert self.run(torch.dot, half[0], half[0]).dtype == torch.bfloat16

    def test_other_operators_are_not_touched(self) -> None:
        assert self.run(torch.add, self.A, self.A).dtype == torch.float32
        assert self.run(torch.mm, self.A.double(), self.A.double()).dtype == torch.float64

    def test_unsafe_loss_is_rejected(self) -> None:
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            self.run(functional.binary_cross_entropy, self.A.sigmoid(), self.A.sigmoid())

    def test_only_inside(self) -> None:
        assert not torch.is_autocast_enabled("spyre")
        on_device = self.A.to("spyre")
        assert (on_device @ on_device).dtype == torch.float32

    def test_training_with_scaler(self) -> None:
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to("spyre")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("spyre", init_scale=1024.0)
        inputs, losses = self.A.to("spyre"), []
        for _ in range(50):
            optimizer.zero_grad()
            with torch.autocast("spyre", dtype=torch.float16):
                loss = functional.mse_loss(model(inputs), inputs[:, :1])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        assert losses[-1] < losses[0] / 2

    def test_lstm(self) -> None:
        lstm = nn.LSTM(4, 4).to("spyre")
        assert self.run(lambda a: lstm(a[None])[0], self.A).dtype in (torch.bfloat16, torch.float32)

    def test_values_are_those_of_the_cpu(self) -> None:
        """In bfloat16, which the CPU's autocast casts to as well: a forward and a backward."""
        reference = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        model = copy.deepcopy(reference).to("spyre")
        labels, results = torch.tensor([0, 2, 1, 0]), []
        for module, device in ((reference, "cpu"), (model, "spyre")):
            with torch.autocast(device, dtype=torch.bfloat16):
                output = module(self.A.to(device))
                loss = functional.cross_entropy(output.float(), labels.to(device))
            loss.backward()
            results.append([output, loss, *(parameter.grad for parameter in module.parameters())])
        for actual, expected in zip(results[1], results[0], strict=True):
            assert actual is not None
            assert expected is not None
            assert actual.is_spyre
            torch.testing.assert_close(actual.detach().cpu(), expected.detach())

    def test_devices_are_apart(self) -> None:
        on_device = self.A.to("spyre")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (on_device @ on_device).dtype == torch.float32
        with torch.autocast("spyre", dtype=torch.bfloat16):
            assert (self.A @ self.A).dtype == torch.float32
            assert (on_device @ on_device).dtype == torch.bfloat16
            with torch.autocast("spyre", enabled=False):
                assert (on_device @ on_device).dtype == torch.float32

    def test_default_type_is_that_of_cuda(self) -> None:
        assert torch.get_autocast_dtype("spyre") == torch.get_autocast_dtype("cuda") == torch.float16
        with torch.autocast("spyre"):
            assert self.run(torch.mm, self.A, self.A, dtype=torch.float16).dtype == torch.float16

    def test_type_that_is_not_supported(self) -> None:
        with (
            pytest.warns(UserWarning, match=r"only supports dtypes of \[?torch.bfloat16, torch.float16"),
            torch.autocast("spyre", dtype=torch.float64),
        ):
            assert not torch.is_autocast_enabled("spyre")

    def test_weights_are_cast_once(self) -> None:
        """The cache: a backward reaches the weight through one cast, however often it was used."""
        weight = torch.ones(4, 4, device="spyre", requires_grad=True)
        with torch.autocast("spyre", dtype=torch.bfloat16):
            first, second = (functional.linear(self.A.to("spyre"), weight) for _ in range(2))
        nodes = [output.grad_fn.next_functions[-1][0] for output in (first, second)]
        assert nodes[0].next_functions[0][0] is nodes[1].next_functions[0][0]
        (first + second).sum().backward()
        expected = 2 * self.A.sum(0).expand(4, 4)
        torch.testing.assert_close(weight.grad.cpu(), expected, rtol=2e-2, atol=2e-2)

    def test_custom_functions(self) -> None:
        seen = []

        class Doubled(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type="spyre", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                seen.append((x.dtype, torch.is_autocast_enabled("spyre")))
                return x * 2

            @staticmethod
            @torch.amp.custom_bwd(device_type="spyre")  # type: ignore[untyped-decorator]
            def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
                seen.append((grad.dtype, torch.is_autocast_enabled("spyre")))
                return grad * 2

        leaf = self.A.to("spyre", torch.bfloat16).requires_grad_()
        with torch.autocast("spyre", dtype=torch.bfloat16):
            Doubled.apply(leaf).sum().backward()
        assert seen == [(torch.float32, False), (torch.float32, False)]
        assert leaf.grad is not None
        assert leaf.grad.tolist() == [[2.0] * 4] * 4


class TestGradScaler:
    """`torch.amp.GradScaler("spyre")` does what the CPU's does, step by step."""

    @staticmethod
    def run(device: str, optimizer: Callable[..., torch.optim.Optimizer]) -> list[tuple[float, list[float], int]]:
        """Scale, weights and growth tracker after steps whose gradients are finite, inf, nan, and finite again."""
        weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], device=device))
        made = optimizer([weight])
        scaler = torch.amp.GradScaler(device, init_scale=4.0, growth_interval=2)
        seen = []
        for spoiled in (0.0, float("inf"), float("nan"), -float("inf"), 0.0, 0.0, 0.0):
            made.zero_grad()
            scaler.scale((weight * weight).sum()).backward()
            assert weight.grad is not None
            weight.grad[1] += spoiled
            scaler.step(made)
            scaler.update()
            seen.append((scaler.get_scale(), weight.tolist(), scaler._get_growth_tracker()))
        return seen

    @pytest.mark.parametrize(
        "optimizer",
        [
            lambda parameters: torch.optim.SGD(parameters, lr=0.125),
            lambda parameters: torch.optim.SGD(parameters, lr=0.125, fused=True),
            lambda parameters: torch.optim.Adam(parameters, lr=0.125, foreach=True),
            lambda parameters: torch.optim.AdamW(parameters, lr=0.125, fused=True),
        ],
    )
    def test_skips_steps(self, optimizer: Callable[..., torch.optim.Optimizer]) -> None:
        expected, actual = self.run("cpu", optimizer), self.run("spyre", optimizer)
        assert [scale for scale, _, _ in actual] == [4.0, 2.0, 1.0, 0.5, 0.5, 1.0, 1.0]
        assert [step[0::2] for step in actual] == [step[0::2] for step in expected]
        for (_, weights, _), (_, theirs, _) in zip(actual, expected, strict=True):
            assert weights == pytest.approx(theirs)
        assert actual[0][1] == actual[1][1] == actual[2][1] == actual[3][1] != actual[4][1]

    def test_unscaling_before_clipping(self) -> None:
        results = []
        for device in ("cpu", "spyre"):
            weight = nn.Parameter(torch.ones(3, device=device))
            optimizer = torch.optim.SGD([weight], lr=1.0)
            scaler = torch.amp.GradScaler(device, init_scale=1024.0)
            scaler.scale((weight * 10).sum()).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_([weight], 1.0)
            with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"):
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            results.append((norm.item(), weight.tolist()))
        assert results[1][0] == pytest.approx(results[0][0])
        assert results[1][1] == pytest.approx(results[0][1])

    def test_several_types_and_optimizers(self) -> None:
        weights = [nn.Parameter(torch.ones(2, device="spyre", dtype=dtype)) for dtype in (torch.float, torch.double)]
        first, second = (torch.optim.SGD([weight], lr=1.0) for weight in weights)
        scaler = torch.amp.GradScaler("spyre", init_scale=8.0)
        scaler.scale((weights[0] * float("inf")).sum() + (weights[1] * 3).sum()).backward()
        scaler.step(first)
        scaler.step(second)
        scaler.update()
        assert weights[0].tolist() == [1.0, 1.0]
        assert weights[1].tolist() == [-2.0, -2.0]
        assert scaler.get_scale() == 4.0

    def test_half_gradients_are_rejected(self) -> None:
        weight = nn.Parameter(torch.ones(2, device="spyre", dtype=torch.half))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler = torch.amp.GradScaler("spyre")
        scaler.scale(weight.sum()).backward()
        with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
            scaler.unscale_(optimizer)

    def test_state(self) -> None:
        scaler = torch.amp.GradScaler("spyre", init_scale=16.0)
        scaler.scale(torch.ones(1, device="spyre"))
        other = torch.amp.GradScaler("spyre")
        other.load_state_dict(scaler.state_dict())
        assert other.get_scale() == pickle.loads(pickle.dumps(scaler)).get_scale() == 16.0
        assert torch.amp.GradScaler("spyre", enabled=False).scale(torch.ones(1)).item() == 1.0
