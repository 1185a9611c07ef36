"""Two ranks share a collection plan. Only the first makes garbage; both collect after the same steps."""

import os
import tempfile

os.environ["TORCH_SPYRE_ALLOC_CONF"] = "device_memory:64MiB"
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
import torch.multiprocessing

import torch_spyre.gc


class StepState:
    """Holds device memory until Python collects."""

    def __init__(self) -> None:
        self.state = self
        self.activations = torch.empty(1 << 20, dtype=torch.uint8, device="spyre")


def rank_main(rank: int, folder: str) -> None:
    dist.init_process_group("spyre", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    with torch_spyre.gc.planned(warmup_steps=2, young_bytes=4 << 20) as plan:
        for _ in range(14):
            if rank == 0:
                StepState()
            plan.step()
    text = f"rank {rank}"
    for each in plan.statistics.recent:
        if each.step > 2:
            asked = "asked here" if each.asked_here else "asked elsewhere"
            text += (
                f"\n  step {each.step}: {each.generation.name.lower()}, {asked}, {each.reclaimed_bytes >> 20} MiB freed"
            )
    texts = [""] * 2
    dist.all_gather_object(texts, text)
    if rank == 0:
        print("\n".join(texts))
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, (folder,), nprocs=2)
