"""The threads that make life hard: collections of the program's own, the collector's switches, policies, hooks.

What takes the chance to succeed from an allocation happens within a provocation (ledger.py). A provocation ends only
when what it began has: a collection that a request with a tiny deadline has given up may still run.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from garbage import GARBAGE_LAYERS, ExpectedError, Node, allocate_quietly
from world import DEVICE_BYTES, DEVICES, KIB, MIB, TIMEOUTS_MS, Thread, World

from torch_spyre import _C
from torch_spyre._pressure_hooks import RemovableHandle
from torch_spyre.memory import register_pressure_hook, set_pressure_policy


def rest(thread: Thread, longest_seconds: float) -> None:
    """Lets others work; ends with the soak."""
    thread.world.stop.wait(thread.random.uniform(0, longest_seconds))


def freeze_live(world: World) -> None:
    """Freezes what is live instead of what was frozen, and no garbage: what of it dies until the next time stays within
    the limit, and collections look only at what is newer, which makes them quick."""
    with world.turnstile.by_oneself():
        gc.unfreeze()
        for _ in range(GARBAGE_LAYERS):
            gc.collect()
        gc.freeze()


class Collector(Thread):
    """The program's own use of the `gc` module."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "collector")

    def operations(self) -> dict[Callable[[], object], float]:
        return {
            self.collect: 30,
            self.switch: 30,
            self.threshold: 5,
            self.clear_callbacks: 10,
            self.allocating_callback: 10,
            self.freeze: 2,
            self.freeze_garbage: 2,
        }

    def finish(self) -> None:
        gc.enable()

    def collect(self) -> None:
        gc.collect(self.random.randrange(3))
        rest(self, 0.1)

    def switch(self) -> None:
        """Mostly off, as training loops have it."""
        gc.disable()
        rest(self, 0.2)
        gc.enable()
        rest(self, 0.05)

    def threshold(self) -> None:
        gc.set_threshold(self.random.choice((1, 100, 700, 10_000)))
        rest(self, 0.02)
        gc.set_threshold(700)

    def clear_callbacks(self) -> None:
        """As a careless library does; the reclaimer puts its entries back before it collects again.

        A collection that begins in between is not seen, and an allocation in one of its finalizers waits for it until
        its deadline. So no other collection may begin: the collector is off and nobody else is there.
        """
        with self.world.turnstile.by_oneself():
            gc.disable()
            gc.callbacks.clear()
            while not gc.callbacks and not self.world.stop.is_set():
                mark = self.world.provocations.now()
                try:
                    Node(torch.empty(MIB, dtype=torch.uint8, device="spyre"))
                except torch.OutOfMemoryError as error:
                    self.out_of_memory(str(error), mark)
            gc.enable()

    def allocating_callback(self) -> None:
        """An allocation in a callback of somebody's collection.

        Between the entries of the reclaimer: one behind both is not seen to be inside a collection once that stops, and
        waits for it until its deadline.
        """

        def callback(phase: str, info: dict[str, int]) -> None:
            allocate_quietly(self.world, torch.device("spyre", 0))

        gc.callbacks.insert(1, callback)
        rest(self, 0.05)
        if callback in gc.callbacks:
            gc.callbacks.remove(callback)

    def freeze(self) -> None:
        freeze_live(self.world)
        rest(self, 0.02)

    def freeze_garbage(self) -> None:
        with self.world.provocations.provoke():
            gc.freeze()
            rest(self, 0.02)
            freeze_live(self.world)


class Governor(Thread):
    """Policies, and hooks that come and go."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "governor")
        self.handles: list[RemovableHandle] = []
        self.caches: list[list[torch.Tensor]] = []

    def operations(self) -> dict[Callable[[], object], float]:
        return {
            self.policy: 40,
            self.register: 30,
            self.remove: 25,
            self.forbid_to_collect: 3,
            self.leave_no_time: 3,
            self.fill_the_device: 5,
        }

    def finish(self) -> None:
        set_pressure_policy(gc="always", escalate=True, timeout_ms=TIMEOUTS_MS[1])
        while self.handles:
            self.handles.pop().remove()
        for cache in self.caches:
            cache.clear()

    def policy(self) -> None:
        set_pressure_policy(escalate=self.random.random() < 0.5, timeout_ms=self.random.randint(*TIMEOUTS_MS))
        rest(self, 0.05)

    @contextmanager
    def provoke(self) -> Iterator[None]:
        """A provocation that lasts until nobody is left who fails because of it."""
        with self.world.provocations.provoke():
            try:
                yield
            finally:
                set_pressure_policy(gc="always", timeout_ms=TIMEOUTS_MS[1])
                self.wait_for_a_quiet_gate()

    def wait_for_a_quiet_gate(self) -> None:
        while not self.world.stop.is_set():
            census = _C.testing.census(0)
            if census["flights"] == census["hook_runs"] == 0:
                return
            time.sleep(0.001)

    def forbid_to_collect(self) -> None:
        with self.provoke():
            policy = self.random.choice(("off", "respect_disable"))
            set_pressure_policy(gc=policy)  # type: ignore[arg-type]
            rest(self, 0.5)

    def leave_no_time(self) -> None:
        with self.provoke():
            set_pressure_policy(timeout_ms=self.random.randint(1, 5))
            rest(self, 0.3)

    def fill_the_device(self) -> None:
        """More live memory than there is room for: hooks give it up."""
        cache: list[torch.Tensor] = []
        with self.provoke():
            self.handles.append(register_pressure_hook(lambda _: cache.clear(), priority=9))
            device = self.random.randrange(DEVICES)
            try:
                for _ in range(DEVICE_BYTES // MIB):
                    cache.append(torch.empty(MIB, dtype=torch.uint8, device=f"spyre:{device}"))
            finally:
                cache.clear()
                self.handles.pop().remove()

    def register(self) -> None:
        if len(self.handles) > 6:
            self.remove()
            return
        cache = [torch.empty(16 * KIB, dtype=torch.uint8, device="spyre") for _ in range(4)]
        self.caches = [*self.caches[-6:], cache]
        own: list[RemovableHandle] = []

        def raises(_: object) -> None:
            raise ExpectedError("a hook")

        def removes_itself(_: object) -> None:
            for handle in own:  # Empty if it is called before `register_pressure_hook` has returned.
                handle.remove()

        def allocates(event: _C.PressureEvent) -> None:
            allocate_quietly(self.world, torch.device("spyre", event.device))

        hooks: list[Callable[[_C.PressureEvent], object]] = [
            lambda _: cache.clear(),
            lambda _: "memory, allegedly",
            raises,
            removes_itself,
            allocates,
            lambda _: gc.collect(),
        ]
        handle = register_pressure_hook(self.random.choice(hooks), priority=self.random.randint(-2, 2))
        own.append(handle)
        self.handles.append(handle)
        rest(self, 0.02)

    def remove(self) -> None:
        if self.handles:
            self.handles.pop(self.random.randrange(len(self.handles))).remove()
        rest(self, 0.02)
