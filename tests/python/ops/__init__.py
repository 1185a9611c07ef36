"""PyTorch's own description of its operators, run on spyre and compared with CPU."""
