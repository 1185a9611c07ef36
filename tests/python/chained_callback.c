/* A pressure callback that calls the one it replaced: on a device of a Python process, the one that collects
 * garbage. */
#include "flex.h"

static FlexCallback previous;
static int calls;

static FlexVerdict on_pressure(FlexLock* lock, const FlexPressureRequest* request, void* arg) {
    FlexVerdict verdict = FLEX_GIVE_UP;
    (void)request;
    (void)arg;
    calls++;
    return flex_lock_call(lock, previous, &verdict) == FLEX_OK ? verdict : FLEX_FAIL;
}

FlexStatus chain(FlexAllocator allocator) {
    return flex_set_pressure_callback(allocator, on_pressure, 0, 0, &previous);
}

FlexStatus unchain(FlexAllocator allocator) { return flex_restore_pressure_callback(allocator, previous, 0); }

int chained_calls(void) { return calls; }
