"""What the soak may demand of a device, and when failing is allowed.

An allocation that fails is a finding only if it could have succeeded. So live memory is booked here before it is
allocated and never exceeds a limit well below the capacity; garbage is not booked, since a collection frees it. What
takes that away, such as a policy that forbids to collect, happens within a *provocation*, which excuses failures.

Locks: each object has one of its own, a leaf; nothing is allocated on a device under it. Finalizers do not come here:
they may run in the middle of any of these methods.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Ledger:
    """Booked bytes of one device."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.booked_bytes = 0
        self.most_bytes = 0
        self.lock = threading.Lock()

    def book(self, nbytes: int) -> bool:
        """Books memory, unless that would exceed the limit."""
        with self.lock:
            if self.booked_bytes + nbytes > self.limit_bytes:
                return False
            self.booked_bytes += nbytes
            self.most_bytes = max(self.most_bytes, self.booked_bytes)
            return True

    def release(self, nbytes: int) -> None:
        """Ends a booking: the memory is free, or garbage."""
        with self.lock:
            self.booked_bytes -= nbytes

    @contextmanager
    def booked(self, nbytes: int) -> Iterator[bool]:
        """A booking for the time of a block; whether there was room."""
        got = self.book(nbytes)
        try:
            yield got
        finally:
            if got:
                self.release(nbytes)


class Provocations:
    """Times in which an allocation may fail."""

    def __init__(self) -> None:
        self.active = 0
        self.begun = 0
        self.lock = threading.Lock()

    @contextmanager
    def provoke(self) -> Iterator[None]:
        """Excuses whatever overlaps the block."""
        with self.lock:
            self.active += 1
            self.begun += 1
        try:
            yield
        finally:
            with self.lock:
                self.active -= 1

    def now(self) -> int:
        """A mark for `excuse`; negative while one is active."""
        with self.lock:
            return -1 if self.active else self.begun

    def excuse(self, mark: int) -> bool:
        """Whether one was active at any time since `mark`."""
        with self.lock:
            return mark < 0 or self.active > 0 or self.begun != mark


class Turnstile:
    """Lets many pass at once, or one alone."""

    def __init__(self) -> None:
        self.inside = 0
        self.alone = False
        self.changed = threading.Condition()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Inside, nobody is alone."""
        with self.changed:
            self.changed.wait_for(lambda: not self.alone)
            self.inside += 1
        try:
            yield
        finally:
            with self.changed:
                self.inside -= 1
                self.changed.notify_all()

    @contextmanager
    def by_oneself(self) -> Iterator[None]:
        """Inside, nobody else is."""
        with self.changed:
            self.changed.wait_for(lambda: not self.alone)
            self.alone = True
            self.changed.wait_for(lambda: self.inside == 0)
        try:
            yield
        finally:
            with self.changed:
                self.alone = False
                self.changed.notify_all()
