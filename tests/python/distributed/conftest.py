"""Pairs of processes that run functions of the tests together."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
import torch.multiprocessing

SIZE = 2

ANSWER_SECONDS = 90
"""What a pair may take for one function; longer is a hang, and ends the pair."""


class RankError(Exception):
    """What a rank raised, with the name of its type and its traceback."""

    def __init__(self, rank: int, kind: str, text: str) -> None:
        super().__init__(f"rank {rank} raised {kind}:\n{text}")
        self.rank = rank
        self.kind = kind
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        return RankError, (self.rank, self.kind, self.text)


class Ranks:
    """Processes that make one group. `backend` is what init_process_group is given."""

    def __init__(self, folder: Path, backend: str | None, timeout_seconds: float = ANSWER_SECONDS) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(SIZE):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve, args=(theirs, rank, f"file://{folder}/rendezvous", backend, timeout_seconds)
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        # The group's timeout is also that of joining it, and interpreters may start seconds apart.
        for rank in range(SIZE):
            self.answer(rank)
        for pipe in self.pipes:
            pipe.send("join")

    def answers(self, function: Callable[..., object], *arguments: object) -> list[Any]:
        """What `function(rank, *arguments)` returned or raised, a RankError, on each rank."""
        for pipe in self.pipes:
            pipe.send((function, arguments))
        return [self.answer(rank) for rank in range(SIZE)]

    def answer(self, rank: int) -> Any:
        if not self.pipes[rank].poll(ANSWER_SECONDS):
            self.end()
            pytest.fail(f"rank {rank} hangs")
        try:
            return self.pipes[rank].recv()
        except EOFError:
            self.processes[rank].join()
            pytest.fail(f"rank {rank} ended with exit status {self.processes[rank].exitcode}")

    def run(self, function: Callable[..., object], *arguments: object) -> list[Any]:
        """What `function(rank, *arguments)` returned on each rank. Raises what a rank raised."""
        answers = self.answers(function, *arguments)
        for answer in answers:
            if isinstance(answer, RankError):
                raise answer
        return answers

    def end(self) -> None:
        for pipe in self.pipes:
            pipe.close()  # The end of its file is a rank's signal to leave.
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def serve(pipe: Connection, rank: int, rendezvous: str, backend: str | None, timeout_seconds: float) -> None:
    """A rank: says that it has started, joins the group when it is told to, then runs what it is sent until the pipe is
    closed.
    """
    torch.set_num_threads(1)
    pipe.send("started")
    pipe.recv()
    torch.distributed.init_process_group(
        backend,
        init_method=rendezvous,
        rank=rank,
        world_size=SIZE,
        timeout=timedelta(seconds=timeout_seconds),
    )
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            break
        pipe.send(called(function, rank, *arguments))
    torch.distributed.destroy_process_group()


def called(function: Callable[..., object], rank: int, *arguments: object) -> object:
    try:
        return function(rank, *arguments)
    except Exception as error:
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        return RankError(rank, kind, "".join(traceback.format_exception(error)))


@pytest.fixture(scope="session", autouse=True)
def loopback() -> Iterator[None]:
    """Gloo asks for the address of the host's name, which need not have one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory, loopback: None) -> Iterator[Ranks]:
    """A pair with the backend `spyre`, for all tests of what goes well."""
    pair = Ranks(tmp_path_factory.mktemp("ranks"), "spyre")
    yield pair
    pair.end()
