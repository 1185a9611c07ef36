"""Why memory may still be held, as far as the interpreter knows. Returns a bit set; the reclaimer names the bits too."""

import gc
import sys

FROZEN_OBJECTS = 1
LIVE_TRACEBACK = 2


def exceptions_being_handled():
    """`sys._current_exceptions()`, which before 3.12 may deadlock if a collection begins inside it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_exceptions()
    finally:
        if was_enabled:
            gc.enable()


def hints(thread_ident):
    """Bits for the thread that asked for memory."""
    found = 0
    if gc.get_freeze_count():
        found |= FROZEN_OBJECTS
    if any(getattr(sys, name, None) is not None for name in ("last_exc", "last_value", "last_traceback")):
        found |= LIVE_TRACEBACK
    current = exceptions_being_handled().get(thread_ident)
    if isinstance(current, tuple):  # 3.11: (type, value, traceback)
        current = current[1]
    if current is not None:
        found |= LIVE_TRACEBACK
    return found
