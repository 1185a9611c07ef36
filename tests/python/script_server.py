"""Runs scripts in forked children of a process that has imported torch, so that each costs a fork and not an import.

A program of its own, which conftest.py starts and talks to: one JSON object in a line of standard input
for each script, answered by two lines, the child's process id and its wait status. A child is the leader of its process
group, imports `torch_spyre` itself, and ends as a program does, with `atexit` and the teardown of its modules.

torch_spyre must not be imported here: its devices cannot be used in a forked child.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
from typing import Any

import torch  # noqa: F401


def serve() -> dict[str, Any] | None:
    """Forks a child for each request, and returns the request in that child; None at the end of the input."""
    gc.freeze()  # Otherwise each collection of a child would copy the pages of every object.
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        child = os.fork()
        if child == 0:
            return request
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)
    return None


def become(request: dict[str, Any]) -> None:
    """Makes this child the process that the script expects, with a watchdog that dumps every stack.

    An alarm and not faulthandler.dump_traceback_later, whose thread a forked child would wait for at its end.
    """
    os.setpgid(0, 0)
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["out"], os.O_WRONLY | os.O_APPEND),
        (2, request["err"], os.O_WRONLY | os.O_APPEND),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.update(request["env"])
    faulthandler.enable()
    faulthandler.register(signal.SIGALRM, all_threads=True, chain=True)
    signal.alarm(request["seconds"])


if __name__ == "__main__" and (request := serve()) is not None:
    become(request)
    import torch_spyre  # noqa: F401

    exec(compile(request["code"], "<script>", "exec"))
