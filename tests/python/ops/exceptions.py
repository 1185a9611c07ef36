"""Operators that the sweep treats in a way of their own, one by one, each with the reason.

An expected failure that no longer fails makes the sweep fail, so that no entry outlives its reason.
"""

from __future__ import annotations

import torch

UNINITIALISED: dict[str, str] = {
    "empty": "memory as it was found",
    "empty_like": "memory as it was found",
    "empty_permuted": "memory as it was found",
    "empty_strided": "memory as it was found",
    "new_empty": "memory as it was found",
    "new_empty_strided": "memory as it was found",
}
"""Results are compared without their values."""

FACTORIES: dict[str, str] = {
    "arange": "has samples that name no device",
    "linspace": "has samples that name no device",
    "linspace.tensor_overload": "the result is on the default device, not that of its arguments",
    "logspace": "has samples that name no device",
    "logspace.tensor_overload": "the result is on the default device, not that of its arguments",
}
"""Called with spyre as the default device."""

CPU_ARGUMENTS: dict[str, str] = {
    "tensor_split": "tensor_indices_or_sections has to be on the CPU, as it has with CUDA",
}
"""Only the input is moved; the other arguments stay on the CPU."""

SLOW: dict[str, int] = {"grid_sampler_3d": 2, "max_pool2d_with_indices_backward": 4}
"""How many samples run without `--all-samples`; these take the CPU's kernel seconds."""

_ACCUMULATION = "PyTorch picks the type in which it accumulates by the name of the device"

ACCUMULATES_BY_NAME: dict[str, str] = {
    "nn.functional.linear_cross_entropy.chunked": _ACCUMULATION,
    "nn.functional.linear_cross_entropy.chunked_none": _ACCUMULATION,
}
"""Run with the choice that PyTorch makes for the CPU."""

OWN_LAYOUT: dict[str, str] = {
    "nn.functional.scaled_dot_product_attention": "fused attention returns the layouts that torch.compile plans with",
}
"""Results are compared without their strides."""

EXPECTED_FAILURES: dict[tuple[str, torch.dtype | None], str] = {}
"""By operator, with its variant, and data type; None stands for every type that the operator has on the CPU."""

_ON_CPU_TOO = "the check fails on the CPU in the same way"
_TOO_LARGE = "the inputs do not fit on the device of the tests, which has 64 MiB"

EXPECTED_GENERIC_FAILURES: dict[tuple[str, str], str] = {
    ("schema", "fft.hfft2"): _ON_CPU_TOO,
    ("schema", "fft.hfftn"): _ON_CPU_TOO,
    ("schema", "grid_sampler_3d"): _TOO_LARGE,
    ("fake", "grid_sampler_3d"): _TOO_LARGE,
    ("errors", "__rmod__"): _ON_CPU_TOO,
    ("errors", "__rpow__"): _ON_CPU_TOO,
    ("errors", "__rsub__"): _ON_CPU_TOO,
    ("errors", "clamp_max"): _ON_CPU_TOO,
    ("errors", "clamp_min"): _ON_CPU_TOO,
    ("errors", "multinomial"): _TOO_LARGE,
    ("module", "nn.FractionalMaxPool2d"): "the inputs mix float32 and float64, which the CPU refuses too",
    ("module", "nn.FractionalMaxPool3d"): "the inputs mix float32 and float64, which the CPU refuses too",
}
"""Of test_device_generic.py: by check and operator, module or optimizer."""

EXPECTED_CUSTOM_FAILURES: dict[str, str] = {
    "NumpyExpMarkDirtyAutogradFunction": "writes to the NumPy array of its input, which off the CPU is a copy",
}
"""Of PyTorch's custom operators and autograd functions."""

_NO_HALF = "the CPU's kernel has no float16: the same failure there"

EXPECTED_LIST_FAILURES: dict[str, str] = {
    "test_module[test_LayerNorm_3d_no_affine_large_feature]": _TOO_LARGE,
    "test_criterion[test_MultiLabelMarginLoss_no_batch_dim_none-float16]": _NO_HALF,
    "test_criterion[test_MultiLabelMarginLoss_no_batch_dim_mean-float16]": _NO_HALF,
    "test_criterion[test_MultiLabelMarginLoss_no_batch_dim_sum-float16]": _NO_HALF,
    "test_autocast[torch_fp16-10-cudnn_convolution]": "an operator of cuDNN, which the CPU does not have",
    "test_autocast[torch_fp16-11-cudnn_convolution_transpose]": "an operator of cuDNN, which the CPU does not have",
}
"""Of test_nn_lists.py: by the name of the test."""
