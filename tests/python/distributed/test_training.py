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


def check_first_fsdp(rank: int, use_orig_params: bool) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    ours = FullyShardedDataParallel(model(), device_id=torch.device("spyre", 0), use_orig_params=use_orig_params)
    train(rank, ours)
    with FullyShardedDataParallel.summon_full_params(ours):
        trained = torch.cat([parameter.detach().flatten().cpu() for parameter in ours.parameters()])
    expected = torch.cat([parameter.detach().flatten() for parameter in on_one_cpu().parameters()])
    torch.testing.assert_close(trained[: expected.numel()], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use_orig_params", [False, True])
def test_first_fsdp(ranks: Ranks, use_orig_params: bool) -> None:
    ranks.run(check_first_fsdp, use_orig_params)


def check_attention_on_distributed_tensors(rank: int) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.nn.attention import SDPBackend, sdpa_kernel

    query = torch.randn(1, 4, 8, 16, generator=torch.Generator().manual_seed(1))
    heads = distribute_tensor(query.to("spyre"), init_device_mesh("spyre", (2,)), [Shard(1)])
    with sdpa_kernel(SDPBackend.MATH):
        actual: Any = functional.scaled_dot_product_attention(heads, heads, heads)
    expected = functional.scaled_dot_product_attention(query, query, query)
    torch.testing.assert_close(actual.full_tensor().cpu(), expected)


def test_attention_on_distributed_tensors(ranks: Ranks) -> None:
    ranks.run(check_attention_on_distributed_tensors)


def check_synchronised_batch_norm(rank: int, dtype: torch.dtype, affine: bool) -> None:
    torch.manual_seed(2)
    data, slope = torch.randn(2, 3, 4, 5, dtype=torch.double), torch.randn(2, 3, 4, 5, dtype=torch.double)
    reference = nn.BatchNorm1d(4, affine=affine, dtype=torch.double)
    whole: Any = data.flatten(0, 1).requires_grad_()
    expected = reference(whole)
    (expected * slope.flatten(0, 1)).sum().backward()
    ours = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(4, affine=affine)).to("spyre")
    part = data[rank].to("spyre", dtype).requires_grad_()
    actual = ours(part)
    (actual * slope[rank].to("spyre", dtype)).sum().backward()
    tolerance = 1e-5 if dtype is torch.float32 else 3e-2
    pairs = [(actual, expected.view(2, 3, 4, 5)[rank]), (part.grad, whole.grad.view(2, 3, 4, 5)[rank])]
    pairs += [(ours.running_mean, reference.running_mean), (ours.running_var, reference.running_var)]
    if affine:  # Gradients of parameters are those of the part; DDP adds them up.
        for one, other in zip(ours.parameters(), reference.parameters(), strict=True):
            torch.distributed.all_reduce(one.grad)
            pairs.append((one.grad, other.grad))
    for mine, theirs in pairs:
        assert mine.is_spyre
        torch.testing.assert_close(mine.detach().cpu().double(), theirs.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "affine"), [(torch.float32, True), (torch.float32, False), (torch.bfloat16, True)])
def test_synchronised_batch_norm(ranks: Ranks, dtype: torch.dtype, affine: bool) -> None:
    ranks.run(check_synchronised_batch_norm, dtype, affine)


def drawn_shards(rank: int) -> dict[str, list[Any]]:
    """Random numbers of distributed tensors, and after them: those that both ranks hold, and those of this rank."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, rand

    mesh = init_device_mesh("spyre", (2,))
    torch.manual_seed(3)
    sharded_rand = rand(4, 4, device_mesh=mesh, placements=[Shard(0)])
    replicated = rand(2, device_mesh=mesh, placements=[Replicate()])
    layer: Any = nn.Linear(4, 4, device="meta")
    fully_shard(layer, mesh=mesh)
    layer.to_empty(device="spyre")
    layer.reset_parameters()
    noise: Any = distribute_tensor(torch.zeros(4, device="spyre"), mesh, [Shard(0)]).normal_()
    every = [sharded_rand.full_tensor(), replicated.to_local(), layer.weight.full_tensor(), noise.full_tensor()]
    mine = [sharded_rand.to_local(), layer.weight.to_local(), noise.to_local()]
    return {
        "both": [each.tolist() for each in [*every, torch.rand(2, device="spyre")]],
        "mine": [each.tolist() for each in mine],
    }


def test_random_numbers_of_distributed_tensors(ranks: Ranks) -> None:
    one, other = ranks.run(drawn_shards)
    assert one["both"] == other["both"]
    assert ranks.run(drawn_shards) == [one, other]
    for mine, theirs in zip(one["mine"], other["mine"], strict=True):
        assert mine != theirs
    numbers = torch.tensor(one["both"][0])
    assert numbers.unique().numel() == numbers.numel()
    assert one["both"][2] != one["both"][0]


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
