"""What Dynamo, which traces for `torch.compile`, does when it meets the functions of `torch.spyre`.

They ask or change the devices, so they run when the program gets there: Dynamo breaks the graph at a call and says why
(`TORCH_LOGS=graph_breaks`, or the error of `fullgraph=True`). Left alone it would trace into them, stop at the
extension module, and warn of each function there. Answers that never change become constants instead.

Set through what Dynamo reads from functions, since importing Dynamo for its decorators would take seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import Any

from torch._C._dynamo import eval_frame

_REASON = "torch.spyre functions run outside of compiled graphs"


def keep_eager(objects: Iterable[object]) -> None:
    """Makes the functions, and the methods of the classes, among `objects` run eagerly."""
    for each in objects:
        each = each.__func__ if isinstance(each, staticmethod) else each
        if isinstance(each, type):
            keep_eager(vars(each).values())
        elif isinstance(each, FunctionType) and not hasattr(each, "_dynamo_marked_constant"):
            _mark(each)


def keep_constant(*functions: Any) -> None:
    """Makes Dynamo call these while it traces, and use what they return."""
    for function in functions:
        function._dynamo_marked_constant = True


def _mark(function: Any) -> None:
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = _REASON
    # When the function runs in the end, neither it nor what it calls is traced.
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
