"""What the error says when dead cycles fill the device and nothing may be collected.

python examples/cycles/no_collection.py
"""

from __future__ import annotations

import os
import textwrap

os.environ.setdefault("TORCH_SPYRE_ALLOC_CONF", "device_memory:64MiB,gc:off")

import torch


class Session:
    """Knows its own clean-up function, and so itself."""

    def __init__(self) -> None:
        self.cache = torch.empty(8 << 20, dtype=torch.uint8, device="spyre")
        self.clean_up = self.close

    def close(self) -> None:
        del self.cache


try:
    for _ in range(10):
        Session()
except torch.OutOfMemoryError as error:
    print(textwrap.fill(str(error), 110))
