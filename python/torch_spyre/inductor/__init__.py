"""`torch.compile` on spyre: Inductor's C++ code generation for the CPU, over device memory.

Device memory is host-addressable, so the kernels that Inductor generates for CPU tensors work on spyre tensors as they
are. What differs is who allocates: the buffers of a compiled function are spyre tensors, from the device's allocator,
so memory pressure inside a compiled function is handled as anywhere else.

PyTorch asks for this through `torch.spyre._inductor_backend_init`, at the first compilation in a process, of whatever
device; importing it earlier would make `import torch` slow. Inductor's classes are not a stable interface: where they
lack what is needed here, compiling for spyre raises an error that names the versions, and other devices are left alone.
"""

from __future__ import annotations


def register() -> None:
    """Tells Inductor how to compile for spyre. Raises nothing: PyTorch also calls it to compile for other devices."""
    from torch_spyre.inductor import _registration

    _registration.register()
