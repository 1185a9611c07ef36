"""`torch.utils.flop_counter`: what the fused attention of this device counts as.

PyTorch has the formulas by the names of its own devices' operators, and counts nothing for an operator without one.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_spyre._when_imported import when_imported


def install() -> None:
    """Gives the operators the formulas of the CPU's, once the module is imported."""
    when_imported("torch.utils.flop_counter", _register)


def _register(module: Any) -> None:
    aten = torch.ops.aten
    as_on_cpu = {
        aten._scaled_dot_product_fused_attention_overrideable: aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_fused_attention_overrideable_backward: (
            aten._scaled_dot_product_flash_attention_for_cpu_backward
        ),
    }
    for ours, cpus in as_on_cpu.items():
        if cpus in module.flop_registry:
            module.flop_registry.setdefault(ours, module.flop_registry[cpus])
