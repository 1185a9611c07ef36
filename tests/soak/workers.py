"""The threads that use memory: they allocate, make garbage, hand tensors to each other, train, and copy.

Each is driven by a generator of its own. What is live is booked before it is allocated (ledger.py).
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from queue import Empty

import torch
from garbage import BEHAVIOURS, Finalized, Node, chain
from torch import nn
from world import DEVICES, KIB, Fault, Held, Thread, World

from torch_spyre import _C, flex

LARGEST_BYTES = 512 * KIB

MODEL_BYTES = 256 * KIB
"""More than a training step of `train` takes, everything included."""


class Worker(Thread):
    """A thread that uses memory."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"worker {number}")
        self.number = number
        self.live: list[Held] = []

    def operations(self) -> dict[Callable[[], object], float]:
        return {
            self.keep: 22,
            self.free: 10,
            self.hand_over: 10,
            self.receive: 5,
            self.make_garbage: 30,
            self.make_chain: 4,
            self.make_finalized: 6,
            self.collect: 0.5,
            self.train: 3,
            self.copy_across: 4,
            self.allocate_native: 2,
            self.allocate_attached: 3,
            self.empty_cache: 0.5,
        }

    def step(self, operation: Callable[[], object]) -> None:
        with self.world.turnstile.together():
            super().step(operation)

    def finish(self) -> None:
        while self.live:
            self.live.pop().give_up()
        self.receive(keep=0.0)

    # ---- live memory

    def size(self) -> int:
        """Mostly small, sometimes large, never round."""
        largest = self.random.choice((4 * KIB, 64 * KIB, 256 * KIB, LARGEST_BYTES))
        return self.random.randint(1, largest)

    def device(self) -> int:
        return self.random.randrange(DEVICES)

    def keep(self) -> None:
        device, nbytes = self.device(), self.size()
        ledger = self.world.ledgers[device]
        if not ledger.book(nbytes):
            self.free()
            return
        try:
            self.live.append(Held(self.world, device, nbytes, self.random.randrange(256)))
        except torch.OutOfMemoryError:
            ledger.release(nbytes)
            raise

    def pick(self) -> Held | None:
        return self.live.pop(self.random.randrange(len(self.live))) if self.live else None

    def free(self) -> None:
        if held := self.pick():
            held.give_up()

    def hand_over(self) -> None:
        """Another thread will free it."""
        if held := self.pick():
            self.random.choice(self.world.inboxes).put(held)

    def receive(self, keep: float = 0.3) -> None:
        inbox = self.world.inboxes[self.number]
        while True:
            try:
                held = inbox.get_nowait()
            except Empty:
                return
            if self.random.random() < keep:
                self.live.append(held)
            else:
                held.give_up()

    # ---- garbage

    def with_booking(self, device: int, nbytes: int, act: Callable[[], object]) -> None:
        """Runs `act` with so much booked, or frees something instead."""
        with self.world.ledgers[device].booked(nbytes) as got:
            if got:
                act()
        if not got:
            self.free()

    def make_garbage(self) -> None:
        device, nbytes = self.device(), self.size()

        def act() -> None:
            Node(torch.empty(nbytes, dtype=torch.uint8, device=f"spyre:{device}"))

        self.with_booking(device, nbytes, act)

    def make_chain(self) -> None:
        device, nbytes = self.device(), self.size()
        layers = self.random.randint(2, 3)
        self.with_booking(device, nbytes + 8 * KIB, lambda: chain(f"spyre:{device}", nbytes, layers))

    def make_finalized(self) -> None:
        device, nbytes = self.device(), self.random.randint(1, 256 * KIB)
        behaviour = self.random.choice(BEHAVIOURS)

        def act() -> None:
            tensor = torch.empty(nbytes, dtype=torch.uint8, device=f"spyre:{device}")
            Finalized(self.world, behaviour, tensor, [tensor.clone() for _ in range(2)])

        self.with_booking(device, 3 * nbytes + 8 * KIB, act)

    def collect(self) -> None:
        gc.collect(self.random.randrange(3))

    # ---- what programs do

    def train(self) -> None:
        """A step of training; the model, its gradients and the graph end as garbage or are freed."""
        device = self.device()

        def act() -> None:
            model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(f"spyre:{device}")
            output = model(torch.randn(16, 32, device=f"spyre:{device}"))
            if not torch.isfinite(output).all().item():
                raise Fault("a forward pass of small weights is not finite")
            output.square().sum().backward()
            if not all(parameter.grad is not None for parameter in model.parameters()):
                raise Fault("backward left a parameter without a gradient")
            if self.random.random() < 0.5:
                cycle: list[object] = [model, output]
                cycle.append(cycle)

        self.with_booking(device, MODEL_BYTES, act)

    def copy_across(self) -> None:
        source, target = 0, DEVICES - 1
        if self.random.random() < 0.5:
            source, target = target, source
        if not (held := self.pick()):
            return
        try:
            if held.ledger is self.world.ledgers[source]:
                self.with_booking(target, held.nbytes, lambda: self.compare_copy(held, target))
        finally:
            self.live.append(held)

    def compare_copy(self, held: Held, target: int) -> None:
        copy = held.tensor.to(f"spyre:{target}")
        if not torch.equal(copy.cpu(), held.tensor.cpu()):
            raise Fault("a copy to another device differs")

    # ---- other ways in

    def allocate_native(self) -> None:
        device, nbytes, threads = self.device(), self.size(), self.random.randint(1, 3)
        mark = self.world.provocations.now()

        def act() -> None:
            for error in _C.testing.allocate_native(device, nbytes, threads, 3):
                self.out_of_memory(error, mark)

        self.with_booking(device, threads * nbytes, act)

    def allocate_attached(self) -> None:
        device, nbytes = self.device(), self.size()
        mark = self.world.provocations.now()

        def act() -> None:
            if error := _C.testing.allocate_attached(device, nbytes):
                self.out_of_memory(error, mark)

        self.with_booking(device, nbytes, act)

    def empty_cache(self) -> None:
        torch.spyre.empty_cache()  # type: ignore[attr-defined]


class FlexUser(Thread):
    """Uses an allocator of the core, shared with others of its kind, whose callback changes all the time."""

    CAPACITY_BYTES = 256 * KIB

    def __init__(self, world: World, number: int, allocator: flex.FlexAllocator) -> None:
        super().__init__(world, f"flex user {number}")
        self.allocator = allocator
        self.live: list[flex.Allocation] = []
        self.cache: list[flex.Allocation] = []

    def operations(self) -> dict[Callable[[], object], float]:
        return {
            self.flex_allocate: 50,
            self.flex_free: 20,
            self.flex_cache: 10,
            self.flex_callback: 10,
            self.flex_validate: 10,
        }

    def finish(self) -> None:
        self.allocator.set_memory_pressure_callback(None)
        self.live.clear()
        self.cache.clear()

    def allocate(self) -> flex.Allocation | None:
        """Failing is allowed: whether the callback helps is up to chance."""
        try:
            allocation = self.allocator.allocate(self.random.randint(1, 16 * KIB))
        except flex.OutOfMemoryError:
            self.done["flex: out of memory"] += 1
            return None
        with memoryview(allocation) as view:
            view[0] = view[-1] = self.number_of(allocation)
        return allocation

    def number_of(self, allocation: flex.Allocation) -> int:
        return allocation.nbytes % 251

    def check(self, allocation: flex.Allocation) -> None:
        with memoryview(allocation) as view:
            if not view[0] == view[-1] == self.number_of(allocation):
                raise Fault("an allocation was written by somebody else")

    def flex_allocate(self) -> None:
        if allocation := self.allocate():
            self.live.append(allocation)
        else:
            self.flex_free()

    def flex_free(self) -> None:
        if self.live:
            allocation = self.live.pop(self.random.randrange(len(self.live)))
            self.check(allocation)
            allocation.free()

    def flex_cache(self) -> None:
        """Memory that a callback gives up."""
        if allocation := self.allocate():
            self.cache.append(allocation)

    def flex_callback(self) -> None:
        behaviours: list[Callable[[flex.PressureRequest], object] | None] = [
            None,
            lambda _: self.cache.clear(),
            lambda request: request.attempt < 4,
            lambda _: self.allocator.stats(),
            lambda _: self.allocate(),
        ]
        self.allocator.set_memory_pressure_callback(self.random.choice(behaviours))

    def flex_validate(self) -> None:
        self.allocator.validate()
        stats = self.allocator.stats()
        if stats["allocated_bytes.all.current"] + stats["free_bytes"] != self.CAPACITY_BYTES:
            raise Fault(f"allocated and free bytes do not add up: {stats}")
