"""DDP and FSDP2 on two processes follow one process on the CPU; each rank has its own memory and its own pressure."""

from __future__ import annotations

import copy
import gc
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from distributed.conftest import Ranks
from pressure_tools import Counters, fill_with_garbage

STEPS = 4


def model() -> nn.Sequential:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), inner, nn.Linear(32, 4))


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step * 10 + rank)
    return torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)


def on_one_cpu() -> nn.Sequential:
    reference = model()
    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        batches = [batch(step, rank) for rank in range(2)]
        torch.stack([functional.cross_entropy(reference(x), y) for x, y in batches]).mean().backward()
        optimizer.step()
    return reference


def train(rank: int, trained: nn.Module, clip: bool = False) -> None:
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step, rank)
        functional.cross_entropy(trained(x.to("spyre")), y.to("spyre")).backward()
        if clip:
            nn.utils.clip_grad_norm_(trained.parameters(), 1000.0)
        optimizer.step()


def check_parameters(trained: nn.Module) -> None:
    for ours, theirs in zip(trained.parameters(), on_one_cpu().parameters(), strict=True):
        whole: Any = ours.full_tensor() if hasattr(ours, "full_tensor") else ours
        assert whole.device.type == "spyre"
        torch.testing.assert_close(whole.detach().cpu(), theirs.detach(), rtol=1e-4, atol=1e-4)


def check_ddp(rank: int, options: dict[str, Any], hook: bool) -> None:
    ours = model().to("spyre")
    wrapped = nn.parallel.DistributedDataParallel(ours, **options)
    if hook:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        wrapped.register_comm_hook(None, allreduce_hook)
    train(rank, wrapped)
    check_parameters(ours)


@pytest.mark.parametrize(
    ("options", "hook"),
    [
        ({}, False),
        ({"gradient_as_bucket_view": True}, False),
        ({"static_graph": True, "bucket_cap_mb": 0.001}, False),
        ({}, True),
    ],
    ids=["default", "bucket_views", "many_buckets", "hook"],
)
def test_ddp(ranks: Ranks, options: dict[str, Any], hook: bool) -> None:
    ranks.run(check_ddp, options, hook)


def lookups(embedding: nn.Module, rank: int, device: str) -> Tensor:
    """A loss of a row that both ranks look up, and one that only this one does."""
    rows: Tensor = embedding(torch.tensor([0, 1 + rank], device=device))
    return rows.square().sum()


def check_sparse_gradients(rank: int) -> None:
    reference = nn.Embedding.from_pretrained(torch.linspace(-1, 1, 12).view(4, 3), freeze=False, sparse=True)
    ours = copy.deepcopy(reference).to("spyre")
    wrapped = nn.parallel.DistributedDataParallel(ours)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (reference, ours)]
    for _ in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.stack([lookups(reference, each, "cpu") for each in range(2)]).mean().backward()
        lookups(wrapped, rank, "spyre").backward()
        for optimizer in optimizers:
            optimizer.step()
    assert ours.weight.grad is not None
    assert ours.weight.grad.layout == torch.sparse_coo
    torch.testing.assert_close(ours.weight.detach().cpu(), reference.weight.detach())


def test_ddp_with_sparse_gradients(ranks: Ranks) -> None:
    ranks.run(check_sparse_gradients)


def sharded(**options: Any) -> nn.Sequential:
    ours = model().to("spyre")
    mesh = init_device_mesh("spyre", (2,))
    for layer in (ours[0], ours[3], ours[4]):
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(ours, mesh=mesh, **options)
    return ours


def check_fsdp(rank: int, options: dict[str, Any], clip: bool) -> None:
    ours = sharded(**options)
    parameters: list[Any] = list(ours.parameters())
    assert sum(each.to_local().numel() for each in parameters) < sum(each.numel() for each in parameters) * 0.6
    train(rank, ours, clip)
    check_parameters(ours)


@pytest.mark.parametrize(
    ("options", "clip"),
    [({}, False), ({"reshard_after_forward": False}, True)],
    ids=["default", "unsharded_between_passes"],
)
def test_fsdp2(ranks: Ranks, options: dict[str, Any], clip: bool) -> None:
    ranks.run(check_fsdp, options, clip)


def train_under_pressure(rank: int, pressed: int, shard: bool) -> dict[str, int]:
    """Trains with the collector off and a device that is full of garbage on one rank; returns its counters."""
    ours = sharded() if shard else model().to("spyre")
    wrapped = ours if shard else nn.parallel.DistributedDataParallel(ours)
    gc.collect()
    gc.disable()
    counters = Counters()
    try:
        if rank == pressed:
            fill_with_garbage(1 << 12)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train(rank, wrapped)
    finally:
        gc.enable()
    check_parameters(ours)
    return {key: counters[key] for key in ("events", "rescued", "failed")} | {"collections": counters.collections()}


@pytest.mark.pressure
@pytest.mark.parametrize("shard", [False, True], ids=["ddp", "fsdp2"])
def test_each_rank_has_its_own_pressure(ranks: Ranks, shard: bool) -> None:
    for pressed in range(2):
        counters = ranks.run(train_under_pressure, pressed, shard)
        assert counters[pressed]["events"] > 0
        assert counters[pressed]["rescued"] == counters[pressed]["events"]
        assert counters[pressed]["collections"] > 0
        assert counters[1 - pressed] == {"events": 0, "rescued": 0, "failed": 0, "collections": 0}
