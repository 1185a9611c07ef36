"""`torch.func` on spyre gives what it gives on CPU: vmap, grad, Jacobians, forward mode, functional modules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, stack_module_state, vjp, vmap
from torch.nn import functional

from conftest import on_both

pytestmark = [
    # torch's own: for operators that it batches in a loop, on the CPU too, and for what its forward mode is made of.
    pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script.* is deprecated"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node with no underlying reference:UserWarning"),
]

X = torch.linspace(-1, 1, 12).reshape(4, 3)
LABELS = torch.tensor([0, 2, 1, 1])
SEQUENCE = torch.linspace(-1, 1, 48).reshape(2, 1, 2, 3, 4)


def changed_in_place(row: torch.Tensor) -> torch.Tensor:
    row = row.clone()
    row[1] = 5.0
    return row.add_(1)


def attention(x: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(x, x, x)


def loss_of_layers(x: torch.Tensor) -> torch.Tensor:
    products = x @ x.t()
    return functional.mse_loss(functional.layer_norm(functional.silu(products).softmax(1), (4,)), products)


def loss_of_attention(x: torch.Tensor) -> torch.Tensor:
    return attention(x).pow(2).sum()


CASES: dict[str, tuple[Callable[..., object], tuple[object, ...]]] = {
    "vmap": (vmap(lambda row: (row * row).sum()), (X,)),
    "vmap_of_columns": (vmap(torch.sin, in_dims=1, out_dims=1), (X,)),
    "vmap_in_chunks": (vmap(torch.cos, chunk_size=3), (X,)),
    "vmap_of_vmap": (vmap(vmap(lambda x: x * x + 1)), (X,)),
    "vmap_of_part": (vmap(lambda row, all_: row @ all_.t(), in_dims=(0, None)), (X, X)),
    "vmap_of_inverse": (
        vmap(lambda row: torch.linalg.inv(torch.outer(row, row) + torch.eye(3, device=row.device))),
        (X,),
    ),
    "vmap_of_convolution": (
        vmap(lambda row: functional.conv1d(row.view(1, 1, 3), torch.ones(1, 1, 2, device=row.device))),
        (X,),
    ),
    "vmap_in_place": (vmap(changed_in_place), (X,)),
    "vmap_of_sort": (vmap(lambda row: row.sort()[0] + row.topk(3)[0]), (X,)),
    "vmap_of_norms": (vmap(lambda row: functional.layer_norm(row, (3,)) + row.softmax(0)), (X,)),
    "vmap_of_batch_norm": (
        vmap(lambda row: functional.batch_norm(row.view(1, 3, 1).expand(2, 3, 2), None, None, training=True)),
        (X,),
    ),
    "vmap_of_embedding": (vmap(lambda row, index: functional.embedding(index, row.view(3, 1))), (X, LABELS)),
    "vmap_of_cross_entropy": (
        vmap(lambda row, label: functional.cross_entropy(row[None], label[None])),
        (X, LABELS),
    ),
    "vmap_of_attention": (vmap(attention), (SEQUENCE,)),
    "grad": (grad(lambda x: (x**3).sum()), (X,)),
    "grad_of_grad": (vmap(vmap(grad(grad(lambda x: x**4)))), (X,)),
    "grad_of_attention": (lambda x: grad(loss_of_attention)(x).contiguous(), (SEQUENCE[0],)),
    "vmap_of_grad_of_attention": (lambda x: vmap(grad(loss_of_attention))(x).contiguous(), (SEQUENCE,)),
    "jacrev": (jacrev(lambda x: x.sin() @ x.t()), (X,)),
    "jacfwd": (jacfwd(lambda x: x.sin() @ x.t()), (X,)),
    "hessian": (hessian(lambda x: (x.sin() ** 2).sum()), (X,)),
    "vjp": (lambda x: vjp(torch.sin, x)[1](x), (X,)),
    "jvp": (lambda x: jvp(torch.sin, (x,), (x,)), (X,)),
    "jvp_of_layers": (
        lambda x: jvp(
            lambda x: functional.mse_loss(
                functional.layer_norm(functional.silu(x @ x.t()).softmax(1), (4,)), x @ x.t()
            ),
            (x,),
            (x,),
        ),
        (X,),
    ),
    "jvp_of_convolution": (
        lambda x: jvp(lambda x: functional.conv2d(x[None, None], torch.ones(1, 1, 2, 2, device=x.device)), (x,), (x,)),
        (X,),
    ),
    "linearize": (lambda x: linearize(torch.sin, x)[1](x), (X,)),
    "functionalize": (torch.func.functionalize(changed_in_place), (X[0],)),
}


@pytest.mark.parametrize("name", CASES)
def test_matches_cpu(name: str) -> None:
    function, arguments = CASES[name]
    on_both(function, *arguments)


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_random_numbers_in_vmap(randomness: str) -> None:
    """They come from the device's generator, which draws as the CPU's does."""

    def drawn(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        result: torch.Tensor = vmap(
            lambda row: row + torch.rand(3, device=row.device) + functional.dropout(row), randomness=randomness
        )(x)
        return result

    on_both(drawn, X)
    rows = drawn(torch.ones(2, 3, device="spyre"))
    assert torch.equal(rows[0], rows[1]) is (randomness == "same")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (torch.nonzero, "vmap: We do not support batching operators that can output dynamic shape"),
        (lambda row: row.sum().item(), r"vmap: It looks like you're calling \.item\(\) on a Tensor"),
        (lambda row: row + torch.rand_like(row), "vmap: called random operation while in randomness error mode"),
    ],
)
def test_what_vmap_rejects_everywhere(function: Callable[[torch.Tensor], object], message: str) -> None:
    for device in ("cpu", "spyre"):
        with pytest.raises(RuntimeError, match=message):
            vmap(function)(X.to(device))


class TestModules:
    @staticmethod
    def network() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def test_functional_call(self) -> None:
        def called(x: torch.Tensor) -> object:
            model = self.network().to(x.device)
            return functional_call(model, {name: value * 2 for name, value in model.named_parameters()}, (x,))

        on_both(called, X)

    def test_gradients_of_each_sample(self) -> None:
        def gradients(x: torch.Tensor) -> object:
            model = self.network().to(x.device)
            parameters = {name: value.detach() for name, value in model.named_parameters()}

            def loss(parameters: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
                result: torch.Tensor = functional_call(model, parameters, (row[None],)).sum()
                return result

            return list(vmap(grad(loss), in_dims=(None, 0))(parameters, x).values())

        on_both(gradients, X)

    def test_ensemble(self) -> None:
        def outputs(x: torch.Tensor) -> object:
            torch.manual_seed(2)
            models = [nn.Linear(3, 2).to(x.device) for _ in range(3)]
            parameters, buffers = stack_module_state(models)
            return vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))(parameters, buffers)

        on_both(outputs, X)

    def test_gradient_of_a_recurrent_layer(self) -> None:
        def gradients(x: torch.Tensor) -> object:
            torch.manual_seed(4)
            layer = nn.LSTM(3, 2).to(x.device)
            return vmap(grad(lambda row: layer(row.view(1, 3))[0].sum()))(x)

        on_both(gradients, X)
