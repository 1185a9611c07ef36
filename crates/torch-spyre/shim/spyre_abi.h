// The C ABI between the Rust core and the C++ shim. Nothing may unwind across it in either direction.
//
// `spyre_rs_*` are implemented in Rust (src/torch_abi), `spyre_shim_*` in the shim. Sizes are bytes.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Status of a call into Rust. Every code but Ok comes with a message in the caller's buffer.
enum SpyreStatus : int32_t {
    SPYRE_OK = 0,
    SPYRE_OUT_OF_MEMORY = 1,  // becomes torch.OutOfMemoryError
    SPYRE_ERROR = 2,  // becomes RuntimeError: bad device index, forked child, configuration, device failure
};

// A caller-provided buffer that Rust fills with a NUL-terminated UTF-8 message.
struct SpyreMessage {
    char* text;
    size_t capacity;
};

// One counter as torch reports it: c10::CachingAllocator::Stat.
struct SpyreStat {
    int64_t current, peak, allocated, freed;
};

// One consistent snapshot of a device, taken after pending frees were drained.
struct SpyreStatistics {
    SpyreStat allocated_bytes, requested_bytes, active_bytes, reserved_bytes, inactive_split_bytes;
    SpyreStat allocation, active, segment, inactive_split;
    int64_t num_ooms, num_alloc_retries;
    int64_t capacity_bytes, free_bytes, largest_free_bytes;
};

// Allocates `nbytes` on `device` (>= 0). On success *data is the host-visible address and *context the value
// to hand to spyre_rs_free. nbytes == 0 gives null for both and touches nothing. May run the whole
// memory-pressure ladder, so the caller must hold no lock that Python code could want.
int32_t spyre_rs_allocate(int32_t device, size_t nbytes, void** data, void** context, SpyreMessage message);

// Frees by context; null is ignored. Never blocks, throws or runs Python. Any thread, any time.
// Calls spyre_shim_report_usage() outside of all locks.
void spyre_rs_free(void* context) noexcept;

// Whether the process is a forked child, in which a lock may be held for ever.
bool spyre_rs_is_forked() noexcept;

// Number of devices; 0 while the configuration is invalid. Never fails.
int32_t spyre_rs_device_count() noexcept;

// Checks that the configuration is valid, devices exist and the process is not a forked child; the reason
// otherwise.
int32_t spyre_rs_ensure_ready(SpyreMessage message) noexcept;

int32_t spyre_rs_statistics(int32_t device, SpyreStatistics* out, SpyreMessage message) noexcept;
void spyre_rs_reset_peak(int32_t device) noexcept;
void spyre_rs_reset_accumulated(int32_t device) noexcept;
void spyre_rs_empty_cache() noexcept;

// The device whose memory holds `address`, or -1.
int32_t spyre_rs_device_of(const void* address) noexcept;

// ---- implemented by the shim

// Registers allocator, guard, hooks and generator with torch. Idempotent.
void spyre_shim_register() noexcept;

// Whether torch's profiler wants memory reports of this thread (cheap; asked before each report). A collector
// thread, for which `collecting` is true, reports to the profiler of a thread that waits for memory.
bool spyre_shim_profiling(bool collecting) noexcept;

// Reports an allocation (nbytes > 0) or a free (nbytes < 0) to torch's profiler. It may take the GIL: never
// called with a lock held, while finalizing, or in a forked child.
void spyre_shim_report_usage(void* data, int64_t nbytes, size_t total_allocated, size_t total_reserved,
                             int32_t device) noexcept;

// This thread's current device.
int32_t spyre_shim_current_device() noexcept;
void spyre_shim_set_current_device(int32_t device) noexcept;

}  // extern "C"
