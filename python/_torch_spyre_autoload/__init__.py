"""What torch calls at the end of `import torch`, through the entry point group `torch.backends`.

A package of its own, because torch turns any exception here into a failing `import torch`, which
must work whatever is wrong with this device. The error is kept and raised by the first use of the device.
"""

from __future__ import annotations

import contextlib
import sys


def autoload() -> None:
    """Makes the device `spyre` available. Never raises."""
    if "torch_spyre" in sys.modules:
        return  # The program is importing the package, which is importing torch. It goes on when torch is complete.
    with contextlib.suppress(Exception):  # torch_spyre._lifecycle keeps it.
        import torch_spyre  # noqa: F401
