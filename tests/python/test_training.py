"""Training on spyre follows training on CPU: optimisers, recurrent cells, attention."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    assert actual.is_spyre
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=tolerance, atol=tolerance)


def train(model: nn.Module, device: str, optimizer: Callable[..., torch.optim.Optimizer], steps: int) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    made = optimizer(model.parameters())
    losses = []
    for _ in range(steps):
        images = torch.randn(4, 3, 8, 8, generator=generator).to(device)
        labels = torch.randint(0, 5, (4,), generator=generator).to(device)
        made.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        made.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=True),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
        lambda parameters: torch.optim.SGD(parameters, lr=1e-1, momentum=0.9, nesterov=True),
        lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3),
        lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2),
    ],
)
def test_training_matches_cpu(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    reference = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5)
    )
    model = copy.deepcopy(reference).to("spyre")
    expected = train(reference, "cpu", optimizer, 5)
    assert train(model, "spyre", optimizer, 5) == pytest.approx(expected, rel=1e-3)
    for ours, theirs in zip(model.state_dict().values(), reference.state_dict().values(), strict=True):
        close(ours, theirs, 1e-3)


def test_memory_is_stable_over_steps() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 5)).to("spyre")
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, "spyre", lambda _: optimizer, 2)
    optimizer.zero_grad()
    before = torch.spyre.memory_allocated()
    train(model, "spyre", lambda _: optimizer, 3)
    optimizer.zero_grad()
    assert torch.spyre.memory_allocated() == before


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_recurrent_layers(kind: type[nn.RNNBase], bias: bool, bidirectional: bool) -> None:
    reference = kind(3, 4, num_layers=2, bias=bias, bidirectional=bidirectional)
    model = copy.deepcopy(reference).to("spyre")
    inputs = torch.randn(5, 2, 3)
    weights = torch.randn(5, 2, 8 if bidirectional else 4)
    results = []
    for module, device in ((reference, "cpu"), (model, "spyre")):
        given = inputs.to(device).detach().requires_grad_()
        output, state = module(given)
        states = state if isinstance(state, tuple) else (state,)
        ((output * weights.to(device)).sum() + sum(each.pow(2).sum() for each in states)).backward()
        results.append([output, *states, given.grad, *(parameter.grad for parameter in module.parameters())])
    for actual, expected in zip(results[1], results[0], strict=True):
        close(actual, expected)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_second_derivative_of_cells(kind: type[nn.LSTMCell] | type[nn.GRUCell]) -> None:
    reference = kind(3, 4).double()
    model = copy.deepcopy(reference).to("spyre")
    given = torch.randn(2, 3, dtype=torch.double)
    results = []
    for module, device in ((reference, "cpu"), (model, "spyre")):
        inputs = given.to(device).detach().requires_grad_()
        output = module(inputs)
        output = output[0] if isinstance(output, tuple) else output
        (first,) = torch.autograd.grad(output.pow(2).sum(), inputs, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), inputs)
        results.append((first, second))
    for actual, expected in zip(results[1], results[0], strict=True):
        close(actual, expected, 1e-8)


@pytest.mark.parametrize(("masked", "causal"), [(False, False), (False, True), (True, False)])
def test_attention(masked: bool, causal: bool) -> None:
    mask = torch.randn(6, 6) if masked else None
    arguments = [torch.randn(2, 3, 6, 8) for _ in range(3)]
    results = []
    for device in ("cpu", "spyre"):
        leaves = [each.to(device).detach().requires_grad_() for each in arguments]
        given = mask.to(device) if mask is not None else None
        output = functional.scaled_dot_product_attention(*leaves, attn_mask=given, is_causal=causal)
        output.pow(2).sum().backward()
        results.append([output, *(leaf.grad for leaf in leaves)])
    for actual, expected in zip(results[1], results[0], strict=True):
        close(actual, expected)


def test_attention_with_a_learned_mask_and_with_groups() -> None:
    query, mask = (
        torch.randn(1, 4, 5, 8, device="spyre"),
        torch.zeros(5, 5, device="spyre", requires_grad=True),
    )
    functional.scaled_dot_product_attention(query, query, query, attn_mask=mask).sum().backward()
    assert mask.grad is not None
    grouped = functional.scaled_dot_product_attention(query, query[:, :2], query[:, :2], enable_gqa=True)
    close(
        grouped,
        functional.scaled_dot_product_attention(
            *(x.cpu() for x in (query, query[:, :2], query[:, :2])), enable_gqa=True
        ),
    )


def test_attention_takes_the_fused_kernel() -> None:
    query = torch.randn(1, 2, 5, 8, device="spyre", requires_grad=True)
    output = functional.scaled_dot_product_attention(query, query, query)
    assert "FusedAttentionOverrideable" in type(output.grad_fn).__name__


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_transformer(training: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    reference = nn.TransformerEncoder(layer, 2).train(training)
    model = copy.deepcopy(reference).to("spyre")
    inputs, padding = torch.randn(2, 4, 8), torch.tensor([[False] * 4, [False, False, True, True]])
    with torch.set_grad_enabled(training):
        actual = model(inputs.to("spyre"), src_key_padding_mask=padding.to("spyre"))
        expected = reference(inputs, src_key_padding_mask=padding)
    close(actual[~padding.to("spyre")], expected[~padding])


def test_convolution_results_are_contiguous() -> None:
    convolution = nn.Conv2d(3, 4, 3).to("spyre", memory_format=torch.channels_last)
    images = torch.randn(2, 3, 6, 6, device="spyre").to(memory_format=torch.channels_last).requires_grad_()
    output = convolution(images)
    assert output.is_contiguous()
    output.sum().backward()
    assert images.grad is not None
