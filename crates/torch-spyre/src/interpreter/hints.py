"""Why memory may still be held, as far as the interpreter knows. Returns a bit set; the reclaimer names the bits too."""

import gc
import sys

FROZEN_OBJECTS = 1
LIVE_TRACEBACK = 2


def hints(thread_ident, exceptions_being_handled):
    """Bits for the thread that asked for memory, given what `sys._current_exceptions()` returned, or None."""
    found = 0
    if gc.get_freeze_count():
        found |= FROZEN_OBJECTS
    if any(getattr(sys, name, None) is not None for name in ("last_exc", "last_value", "last_traceback")):
        found |= LIVE_TRACEBACK
    current = (exceptions_being_handled or {}).get(thread_ident)
    if isinstance(current, tuple):  # 3.11: (type, value, traceback)
        current = current[1]
    if current is not None:
        found |= LIVE_TRACEBACK
    return found
