"""Every collective gives on spyre what it gives on the CPU, works on the tensors' own memory, and can be waited for."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor

from conftest import assert_same
from distributed.conftest import RankError, Ranks
from pressure_tools import MIB, block, fits

dist: Any = torch.distributed
"""Not all that is used here is in PyTorch's annotations."""

Collective = Callable[[int, str], Any]


def mine(rank: int, device: str, count: int = 4) -> Tensor:
    return torch.arange(float(count), device=device) + 10 * rank


def all_reduce(rank: int, device: str) -> Any:
    results = []
    for operation in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        tensor = mine(rank, device)
        dist.all_reduce(tensor, operation)
        results.append(tensor)
    return results


def all_reduce_of_types(rank: int, device: str) -> Any:
    results = []
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.complex64):
        tensor = mine(rank, device).to(dtype)
        dist.all_reduce(tensor)
        results.append(tensor)
    return results


def all_reduce_of_a_part(rank: int, device: str) -> Any:
    tensor = mine(rank, device, 12).view(3, 4)
    dist.all_reduce(tensor[1])
    return tensor


def all_reduce_coalesced(rank: int, device: str) -> Any:
    tensors = [mine(rank, device), mine(rank, device, 7)]
    dist.all_reduce_coalesced(tensors)
    return tensors


def sparse(rank: int, device: str) -> Tensor:
    """Of rows that both have, rows that one has, and rows that none has."""
    indices = torch.tensor([[0, 2 + rank]], device=device)
    return torch.sparse_coo_tensor(indices, mine(rank, device).view(2, 2), (5, 2))


def all_reduce_of_sparse(rank: int, device: str) -> Any:
    tensors = [sparse(rank, device) for _ in range(3)]
    dist.all_reduce(tensors[0])
    dist.all_reduce(tensors[1], async_op=True).wait()
    work = dist.all_reduce(tensors[2], async_op=True)
    future = work.get_future()
    future.wait()
    work.wait()
    assert work.is_completed()
    assert work.result()[0].device.type == device
    return [each.to_dense() for each in (*tensors, future.value()[0])], [each._nnz() for each in tensors]


def shapes_of_whole_tensors(rank: int) -> None:
    stacked, row = torch.zeros(2, 4, device="spyre"), torch.zeros(1, 8, device="spyre")
    dist.all_gather_into_tensor(stacked, mine(rank, "spyre"))
    dist.all_gather_into_tensor(row, mine(rank, "spyre").view(2, 2))
    assert stacked.view(1, 8).tolist() == row.tolist() == [[0, 1, 2, 3, 10, 11, 12, 13]]
    part = torch.zeros(4, device="spyre")
    dist.reduce_scatter_tensor(part, row)
    assert part.tolist() == [each * 2 for each in row[0].tolist()[4 * rank : 4 * rank + 4]]


def test_shapes_of_whole_tensors(ranks: Ranks) -> None:
    """Gathering and scattering whole tensors takes the shapes that NCCL takes."""
    ranks.run(shapes_of_whole_tensors)


def broadcast(rank: int, device: str) -> Any:
    tensor = mine(rank, device)
    dist.broadcast(tensor, 1)
    return tensor


def reduce(rank: int, device: str) -> Any:
    tensor = mine(rank, device)
    dist.reduce(tensor, 1)
    return tensor if rank == 1 else None


def all_gather(rank: int, device: str) -> Any:
    parts = [torch.zeros(4, device=device) for _ in range(2)]
    dist.all_gather(parts, mine(rank, device))
    whole = torch.zeros(8, device=device)
    dist.all_gather_into_tensor(whole, mine(rank, device))
    lists = [[torch.zeros(4, device=device)] for _ in range(2)]
    dist.all_gather_coalesced(lists, [mine(rank, device)])
    return [*parts, whole, *lists[0], *lists[1]]


def reduce_scatter(rank: int, device: str) -> Any:
    part, other = torch.zeros(2, device=device), torch.zeros(2, device=device)
    dist.reduce_scatter_tensor(part, mine(rank, device))
    dist.reduce_scatter(other, list(mine(rank, device).chunk(2)))
    return part, other


def all_to_all(rank: int, device: str) -> Any:
    even, uneven = torch.zeros(4, device=device), torch.zeros(2 if rank == 0 else 6, device=device)
    dist.all_to_all_single(even, mine(rank, device))
    sizes = [1, 1] if rank == 0 else [3, 3]
    dist.all_to_all_single(uneven, mine(rank, device), sizes, [1, 3])
    parts = [torch.zeros(2, device=device) for _ in range(2)]
    dist.all_to_all(parts, list(mine(rank, device).chunk(2)))
    return [even, uneven, *parts]


def gather_and_scatter(rank: int, device: str) -> Any:
    parts = [torch.zeros(4, device=device) for _ in range(2)] if rank == 0 else None
    dist.gather(mine(rank, device), parts, 0)
    part = torch.zeros(2, device=device)
    dist.scatter(part, list(mine(5, device).chunk(2)) if rank == 0 else None, 0)
    return part, parts


def send_and_receive(rank: int, device: str) -> Any:
    received, again, batch = (torch.zeros(4, device=device) for _ in range(3))
    if rank == 0:
        dist.send(mine(rank, device), 1)
        sender = dist.recv(received, 1)
    else:
        sender = dist.recv(received)
        dist.send(mine(rank, device), 0)
    assert sender == 1 - rank
    for work in (dist.isend(mine(rank, device), 1 - rank, tag=3), dist.irecv(again, 1 - rank, tag=3)):
        work.wait()
    sending, receiving = dist.P2POp(dist.isend, mine(rank, device), 1 - rank), dist.P2POp(dist.irecv, batch, 1 - rank)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()
    return received, again, batch


def coalesced_block(rank: int, device: str) -> Any:
    reduced, gathered = [mine(rank, device), mine(rank, device)], [torch.zeros(8, device=device) for _ in range(2)]
    with dist._coalescing_manager(async_ops=True) as block:
        for tensor in reduced:
            dist.all_reduce(tensor)
    block.wait()
    with dist._coalescing_manager():
        for tensor in gathered:
            dist.all_gather_into_tensor(tensor, mine(rank, device))
    return reduced + gathered


def functional(rank: int, device: str) -> Any:
    from torch.distributed import _functional_collectives as collectives

    group = dist.group.WORLD
    reduced = collectives.all_reduce(mine(rank, device), "sum", group) + 0
    gathered = collectives.all_gather_tensor(mine(rank, device), 0, group) + 0
    scattered = collectives.reduce_scatter_tensor(mine(rank, device), "sum", 0, group) + 0
    return [collectives.wait_tensor(each) + 0 for each in (reduced, gathered, scattered)]


def new_groups(rank: int, device: str) -> Any:
    pair, alone = dist.new_group([0, 1]), dist.new_group([rank], use_local_synchronization=True)
    one, other = mine(rank, device), mine(rank, device)
    dist.all_reduce(one, group=pair)
    dist.all_reduce(other, group=alone)
    return one, other


COLLECTIVES: list[Collective] = [
    all_reduce,
    all_reduce_of_types,
    all_reduce_of_a_part,
    all_reduce_coalesced,
    all_reduce_of_sparse,
    broadcast,
    reduce,
    all_gather,
    reduce_scatter,
    all_to_all,
    gather_and_scatter,
    send_and_receive,
    coalesced_block,
    functional,
    new_groups,
]


def check_as_on_cpu(rank: int, collective: Collective) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of collectives that PyTorch would rather see called by newer names.
        expected = collective(rank, "cpu")
        actual = collective(rank, "spyre")
    assert_same(actual, expected)


@pytest.mark.parametrize("collective", COLLECTIVES, ids=lambda collective: collective.__name__)
def test_as_on_cpu(ranks: Ranks, collective: Collective) -> None:
    ranks.run(check_as_on_cpu, collective)


def check_no_copies(rank: int) -> None:
    tensor, whole = mine(rank, "spyre", 1 << 18), torch.zeros(1 << 19, device="spyre")
    address, before = tensor.data_ptr(), torch.spyre.memory_stats()
    torch.spyre.reset_peak_memory_stats()
    dist.all_reduce(tensor)
    dist.all_gather_into_tensor(whole, tensor)
    dist.broadcast(tensor, 0)
    after = torch.spyre.memory_stats()
    assert tensor.data_ptr() == address
    for key in ("allocation.all.allocated", "allocated_bytes.all.current"):
        assert after[key] == before[key]
    assert after["allocated_bytes.all.peak"] == before["allocated_bytes.all.current"]


def test_no_copies(ranks: Ranks) -> None:
    ranks.run(check_no_copies)


def check_work(rank: int) -> None:
    tensor = mine(rank, "spyre")
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert [each.data_ptr() for each in work.result()] == [tensor.data_ptr()]
    future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0] + 1)
    future.wait()
    assert_same(future.value(), torch.tensor([20.0, 24.0, 28.0, 32.0]) + 1)
    assert_same(tensor, torch.tensor([20.0, 24.0, 28.0, 32.0]))


def test_work_and_futures(ranks: Ranks) -> None:
    ranks.run(check_work)


def check_memory_lives_as_long_as_the_work(rank: int) -> None:
    before = torch.spyre.memory_allocated()
    works = [dist.all_reduce(mine(rank, "spyre", 1 << 16), async_op=True) for _ in range(8)]
    for work in works:
        work.wait()
    assert work.result()[0].sum().item() == sum(range(1 << 16)) * 2 + 10 * (1 << 16)
    del works, work
    # Gloo's thread drops its own references a moment after the work is done. The watchdog ends a wait in vain.
    while torch.spyre.memory_allocated() != before:
        time.sleep(0.01)


def test_memory_lives_as_long_as_the_work(ranks: Ranks) -> None:
    ranks.run(check_memory_lives_as_long_as_the_work)


def check_sparse_on_a_full_device(rank: int) -> None:
    reduced = sparse(rank, "spyre")
    live: list[Tensor] = []
    if rank == 1:
        gc.collect()
        for nbytes in (MIB, MIB >> 6, 128):
            while fits(nbytes):
                live.append(block(nbytes))
    work = dist.all_reduce(reduced, async_op=True)
    if rank == 1:
        with pytest.raises(torch.OutOfMemoryError, match="spyre out of memory"):
            work.wait()
        assert not work.is_success()
    else:
        work.wait()
        assert reduced._nnz() == 3


@pytest.mark.pressure
def test_a_sparse_result_that_does_not_fit_is_an_out_of_memory_error(ranks: Ranks) -> None:
    ranks.run(check_sparse_on_a_full_device)


def check_objects(rank: int) -> None:
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, {"rank": rank, "tensor": mine(rank, "spyre")})
    assert [each["rank"] for each in gathered] == [0, 1]
    assert_same(gathered[1]["tensor"], mine(1, "cpu"))
    everywhere = [rank, "text"]
    dist.broadcast_object_list(everywhere, 1)
    assert everywhere == [1, "text"]
    scattered: list[Any] = [None]
    dist.scatter_object_list(scattered, ["a", "b"] if rank == 0 else None, 0)
    assert scattered == ["ab"[rank]]


def test_objects(ranks: Ranks) -> None:
    ranks.run(check_objects)


def check_barriers(rank: int) -> None:
    dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    dist.group.WORLD.monitored_barrier()
    mesh = dist.init_device_mesh("spyre", (2,))
    assert mesh.get_group().size() == 2
    assert dist.get_backend() == "spyre"


def test_barriers_and_meshes(ranks: Ranks) -> None:
    ranks.run(check_barriers)


def refuse_premultiplied(rank: int) -> None:
    dist.all_reduce(mine(rank, "spyre"), dist._make_nccl_premul_sum(0.5))


def test_what_gloo_lacks_is_its_error(ranks: Ranks) -> None:
    answers = ranks.answers(refuse_premultiplied)
    assert all(isinstance(answer, RankError) and "with Gloo" in answer.text for answer in answers)


def check_default_backend(rank: int) -> str:
    for collective in (all_reduce, all_gather, reduce_scatter, send_and_receive):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            collective(rank, "spyre")
    dist.barrier()
    check_objects(rank)
    return ",".join(sorted(device.type for device in dist.group.WORLD._device_types))


@pytest.mark.parametrize(("backend", "devices"), [(None, "spyre"), ("cpu:gloo,spyre:spyre", "cpu,spyre")])
def test_other_ways_to_get_the_backend(tmp_path: Path, backend: str | None, devices: str) -> None:
    pair = Ranks(tmp_path, backend)
    try:
        assert pair.run(check_default_backend) == [devices, devices]
        if backend is not None:
            pair.run(check_as_on_cpu, all_reduce)
    finally:
        pair.end()
