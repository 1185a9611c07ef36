"""Layers of torch.nn with all their options, forward and backward, compared with CPU."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ops import calls
from ops.comparison import Expectations
from ops.device_copies import Copies


def run(layer: nn.Module, *inputs: object, expectations: Expectations | None = None) -> None:
    assert calls.compare(calls.trained(layer, inputs), expectations or Expectations())


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = int(torch.Size(shape).numel())
    values = torch.randn(count, generator=torch.Generator().manual_seed(count)).to(dtype)
    return values.reshape(shape).requires_grad_()


class TestRecurrent:
    """The CPU may compute them with oneDNN, as whole layers; the last digits then differ."""

    CLOSE = Expectations(strides=False, relative=1e-4, absolute=1e-5)

    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
    @pytest.mark.parametrize(("layers", "both_ways"), [(1, False), (2, False), (1, True), (2, True)])
    @pytest.mark.parametrize(("bias", "batch_first"), [(True, False), (False, True)])
    def test_layers(self, kind: Any, layers: int, both_ways: bool, bias: bool, batch_first: bool) -> None:
        layer = kind(5, 7, layers, bias=bias, batch_first=batch_first, bidirectional=both_ways)
        run(layer, numbers(3, 4, 5), expectations=self.CLOSE)

    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
    def test_initial_state(self, kind: Any) -> None:
        state = numbers(2, 4, 7)
        both = (state, numbers(2, 4, 7)) if kind is nn.LSTM else state
        run(kind(5, 7, 2), numbers(3, 4, 5), both, expectations=self.CLOSE)

    def test_projection(self) -> None:
        run(nn.LSTM(5, 7, 2, proj_size=3, bidirectional=True), numbers(3, 4, 5), expectations=self.CLOSE)

    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
    def test_unbatched_and_relu(self, kind: Any) -> None:
        options = {"nonlinearity": "relu"} if kind is nn.RNN else {}
        run(kind(5, 7, **options), numbers(3, 5), expectations=self.CLOSE)

    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
    @pytest.mark.parametrize("both_ways", [False, True])
    def test_packed(self, kind: Any, both_ways: bool) -> None:
        class Packed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = kind(5, 7, 2, bidirectional=both_ways)

            def forward(self, padded: torch.Tensor) -> object:
                packed = nn.utils.rnn.pack_padded_sequence(padded, torch.tensor([3, 1, 2]), enforce_sorted=False)
                results, state = self.layer(packed)
                return nn.utils.rnn.pad_packed_sequence(results)[0], state

        run(Packed(), numbers(3, 3, 5), expectations=self.CLOSE)

    @pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
    @pytest.mark.parametrize("bias", [True, False])
    def test_cells(self, kind: Any, bias: bool) -> None:
        run(kind(5, 7, bias=bias), numbers(4, 5), expectations=self.CLOSE)

    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
    def test_dropout_between_layers_is_seeded(self, kind: Any) -> None:
        layer = kind(5, 7, 2, dropout=0.5).to("spyre")
        inputs = numbers(3, 4, 5).detach().to("spyre")
        drawn = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            drawn.append(layer(inputs)[0].detach().cpu())
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])

    def test_mixed_devices_are_rejected(self) -> None:
        with pytest.raises(RuntimeError, match="same device"):
            nn.LSTM(5, 7).to("spyre")(torch.ones(3, 4, 5))
        with pytest.raises(RuntimeError, match="same device"):
            nn.GRU(5, 7)(torch.ones(3, 4, 5, device="spyre"))


MASKS: dict[str, Callable[[int, int], torch.Tensor | None]] = {
    "no mask": lambda rows, columns: None,
    "boolean": lambda rows, columns: torch.ones(rows, columns, dtype=torch.bool).tril(2),
    "added": lambda rows, columns: torch.linspace(-2, 2, rows * columns).reshape(rows, columns),
    "learned": lambda rows, columns: torch.linspace(-2, 2, rows * columns).reshape(rows, columns).requires_grad_(),
}


class Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> object:
        return functional.scaled_dot_product_attention(query, key, value, mask, **self.options)


class TestAttention:
    @pytest.mark.parametrize("mask", MASKS)
    @pytest.mark.parametrize("dropout", [0.0, 0.4])
    @pytest.mark.parametrize("scale", [None, 0.3])
    @pytest.mark.parametrize("dimensions", [3, 4])
    def test_masks(self, mask: str, dropout: float, scale: float | None, dimensions: int) -> None:
        shape = (2, 4)[: dimensions - 2]
        query, key, value = numbers(*shape, 5, 8), numbers(*shape, 6, 8), numbers(*shape, 6, 8)
        run(Attention(dropout_p=dropout, scale=scale), query, key, value, MASKS[mask](5, 6))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize(("heads", "grouped"), [(4, False), (2, True), (1, True)])
    @pytest.mark.parametrize("causal", [False, True])
    def test_causal_and_grouped(self, dtype: torch.dtype, heads: int, grouped: bool, causal: bool) -> None:
        query = numbers(2, 4, 5, 8, dtype=dtype)
        key, value = numbers(2, heads, 5, 8, dtype=dtype), numbers(2, heads, 5, 8, dtype=dtype)
        run(Attention(is_causal=causal, enable_gqa=grouped), query, key, value, None)

    @pytest.mark.parametrize(
        "backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION], ids=lambda b: b.name
    )
    def test_chosen_kernels(self, backend: SDPBackend) -> None:
        def call(copies: Copies) -> object:
            tensors = copies.of((numbers(2, 4, 5, 8), numbers(2, 4, 6, 8), numbers(2, 4, 6, 8)))
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(*tensors)

        calls.compare(call, Expectations())

    def test_operations_are_counted(self) -> None:
        counts = []
        for device in ("cpu", "spyre"):
            with FlopCounterMode(display=False) as counter:
                query = numbers(2, 4, 5, 8).detach().to(device).requires_grad_()
                functional.scaled_dot_product_attention(query, query, query).sum().backward()
            counts.append(counter.get_total_flops())
        # PyTorch counts the CPU's fused attention from 2.15 on.
        assert counts[0] == counts[1]
        assert counts[0] > 0 or torch.__version__ < "2.15"

    def test_causal_with_a_mask(self) -> None:
        """PyTorch 2.12 takes both, later versions refuse: here as on the CPU."""

        def call(copies: Copies) -> object:
            query, key, value = (copies.of(numbers(2, 4, 5, 8)) for _ in range(3))
            mask = copies.of(MASKS["boolean"](5, 5))
            return functional.scaled_dot_product_attention(query, key, value, mask, is_causal=True)

        calls.compare(call, Expectations())

    @pytest.mark.parametrize("options", [{}, {"bias": False}, {"add_zero_attn": True}, {"kdim": 6, "vdim": 10}])
    @pytest.mark.parametrize("training", [True, False])
    def test_multihead(self, options: dict[str, Any], training: bool) -> None:
        layer = nn.MultiheadAttention(8, 2, batch_first=True, **options).train(training)
        wide = options.get("kdim", 8), options.get("vdim", 8)
        run(layer, numbers(3, 5, 8), numbers(3, 6, wide[0]), numbers(3, 6, wide[1]))

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("norm_first", [True, False])
    def test_transformer_encoder(self, training: bool, norm_first: bool) -> None:
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first)
        run(layer.train(training), numbers(3, 5, 8))

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    def test_transformer_encoder_without_gradients_with_padding(self) -> None:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2).eval()
        padding = torch.tensor([[False, False, False], [False, True, True]])

        def call(copies: Copies) -> object:
            with torch.no_grad():
                here = copy.deepcopy(encoder).to(copies.device)
                inputs, mask = copies.of((numbers(2, 3, 8).detach(), padding))
                return here(inputs, src_key_padding_mask=mask)

        assert calls.compare(call, Expectations(absolute=1e-5, relative=1e-4))


CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


class TestConvolution:
    """Results are contiguous on the device whatever layout the CPU prefers."""

    ANY_LAYOUT = Expectations(strides=False, relative=1e-4, absolute=1e-5)

    @pytest.mark.parametrize("dimensions", [1, 2, 3])
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"stride": 2, "padding": 1},
            {"dilation": 2, "bias": False},
            {"groups": 2},
            {"groups": 4, "padding": "same"},
            {"padding": 1, "padding_mode": "reflect"},
            {"padding": 1, "padding_mode": "replicate"},
            {"padding": 1, "padding_mode": "circular"},
            {"padding": "valid", "groups": 4, "dilation": 2},
        ],
        ids=str,
    )
    def test_options(self, dimensions: int, options: dict[str, Any]) -> None:
        layer = CONVOLUTIONS[dimensions](4, 8, 3, **options)
        run(layer, numbers(2, 4, *[7] * dimensions), expectations=self.ANY_LAYOUT)
        run(layer, numbers(4, *[7] * dimensions), expectations=self.ANY_LAYOUT)

    @pytest.mark.parametrize("dimensions", [1, 2, 3])
    @pytest.mark.parametrize(
        "options",
        [{}, {"stride": 2, "output_padding": 1}, {"groups": 2, "bias": False}, {"dilation": 2, "padding": 1}],
        ids=str,
    )
    def test_transposed(self, dimensions: int, options: dict[str, Any]) -> None:
        layer = TRANSPOSED[dimensions](4, 8, 3, **options)
        run(layer, numbers(2, 4, *[5] * dimensions), expectations=self.ANY_LAYOUT)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64, torch.float64])
    def test_types(self, dtype: torch.dtype) -> None:
        layer = nn.Conv2d(4, 8, 3, dtype=dtype)
        run(layer, numbers(2, 4, 7, 7, dtype=dtype), expectations=Expectations(strides=False))

    def test_channels_last(self) -> None:
        layer: Any = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
        image = numbers(2, 4, 7, 7).detach().to(memory_format=torch.channels_last).requires_grad_()
        run(layer, image, expectations=self.ANY_LAYOUT)

    def test_empty_batch(self) -> None:
        run(nn.Conv2d(4, 8, 3), numbers(0, 4, 7, 7), expectations=self.ANY_LAYOUT)

    @pytest.mark.parametrize("layer", [nn.Conv2d(4, 8, 3), nn.ConvTranspose1d(4, 8, 3), nn.Conv3d(4, 8, 3)])
    def test_wrong_channels_are_rejected_as_on_cpu(self, layer: nn.Module) -> None:
        def call(copies: Copies) -> object:
            return copy.deepcopy(layer).to(copies.device)(torch.ones(2, 3, 7, 7, 7, device=copies.device))

        assert not calls.compare(call, Expectations())


BAGS = [
    dict(zip(("mode", "sparse", "include_last_offset", "padding_idx"), values, strict=True))
    for values in itertools.product(("sum", "mean", "max"), (False, True), (False, True), (None, 3))
    if not (values[0] == "max" and values[1])
]


class TestEmbeddingBag:
    INDICES = torch.tensor([1, 3, 2, 3, 0, 4])

    @pytest.mark.parametrize("options", BAGS, ids=lambda options: "-".join(map(str, options.values())))
    def test_modes(self, options: dict[str, Any]) -> None:
        offsets = [0, 2, 2, 6] if options["include_last_offset"] else [0, 2, 2]
        run(nn.EmbeddingBag(5, 3, **options), self.INDICES, torch.tensor(offsets))

    @pytest.mark.parametrize("mode", ["sum", "mean", "max"])
    def test_matrix_of_indices(self, mode: str) -> None:
        run(nn.EmbeddingBag(5, 3, mode=mode), self.INDICES.reshape(2, 3))

    def test_weights_of_samples(self) -> None:
        run(nn.EmbeddingBag(5, 3, mode="sum"), self.INDICES, torch.tensor([0, 2]), numbers(6))

    def test_max_norm_changes_the_weights(self) -> None:
        run(nn.EmbeddingBag(5, 3, max_norm=0.5), self.INDICES, torch.tensor([0, 2]))
        run(nn.Embedding(5, 3, max_norm=0.5, scale_grad_by_freq=True, padding_idx=0), self.INDICES)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm1d(4), (6, 4)),
        (nn.BatchNorm2d(4, momentum=None), (3, 4, 5, 5)),
        (nn.BatchNorm3d(4, affine=False), (2, 4, 3, 3, 3)),
        (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (3, 4, 5, 5)),
        (nn.GroupNorm(2, 4), (3, 4, 5)),
        (nn.LayerNorm([4, 5]), (3, 4, 5)),
        (nn.RMSNorm(5), (3, 4, 5)),
        (nn.LocalResponseNorm(2), (3, 4, 5)),
        (nn.Bilinear(4, 4, 3), (3, 4)),
        (nn.PReLU(4), (3, 4, 5)),
        (nn.Fold((4, 5), 2), (3, 8, 12)),
        (nn.Unfold(2, dilation=2), (3, 4, 5, 5)),
        (nn.FractionalMaxPool2d(2, output_size=3), (2, 4, 7, 7)),
        (nn.LPPool2d(2.0, 2), (2, 4, 6, 6)),
        (nn.Softmax2d(), (2, 4, 3, 3)),
        (nn.PixelShuffle(2), (2, 4, 3, 3)),
        (nn.AdaptiveLogSoftmaxWithLoss(8, 10, [4, 7], div_value=2.0), (6, 8)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
@pytest.mark.parametrize("training", [True, False])
def test_other_layers(layer: nn.Module, shape: tuple[int, ...], training: bool) -> None:
    inputs: list[torch.Tensor] = [numbers(*shape)]
    if isinstance(layer, nn.Bilinear):
        inputs.append(numbers(*shape))
    if isinstance(layer, nn.AdaptiveLogSoftmaxWithLoss):
        inputs.append(torch.tensor([0, 3, 4, 6, 8, 9]))
    run(layer.train(training), *inputs, expectations=Expectations(relative=1e-5, absolute=1e-5))
