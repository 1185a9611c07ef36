// The C ABI of FlexAllocator. Plain C99, and C++; for C++ there is a thin layer above it in flex.hpp.
//
// In short (docs/c_api.md has the long form):
//   - Every function may be called from any thread. It returns a status, and leaves a text for flex_last_error.
//   - Handles are numbers. One that was freed, is null, or is garbage is found out and changes nothing. Pointers are
//     followed, so they must be null, where that is allowed, or valid; "Safety" says what for.
//   - When the device is exhausted, the pressure callback runs on the thread that allocates, with the allocator mutex
//     held. Until it calls flex_unlocked it may look and release; what would wait for a mutex returns FLEX_LOCKED.
//   - Nothing unwinds out of these functions. An exception that leaves a callback ends the process.
//   - In a forked child every function returns FLEX_FORKED.

#ifndef FLEX_H
#define FLEX_H

// Generated from crates/flex-c by cbindgen: do not edit. `make header` writes it anew.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A flag: fill fresh and freed blocks with a pattern, to find use of unset or freed memory. Slow.
#define FLEX_POISON 1

// A flag: name regions by an index, as the hardware does in VF mode, instead of by their base address.
#define FLEX_REGION_INDEX 2

// How many reasons there are.
#define FLEX_SKIP_REASONS 8

// The version of this ABI. It changes when a program built against an older `flex.h` no longer works.
#define FLEX_ABI_VERSION 1

// What a function returns. Every status but `FLEX_OK` comes with a text: see `flex_last_error`.
//
// A function that does not return `FLEX_OK` has written nothing to the caller's variables.
enum FlexStatus
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // It worked.
    FLEX_OK = 0,
    // No memory was found, also after the pressure callback. The text has the figures.
    FLEX_OUT_OF_MEMORY = 1,
    // A size of 0, or one that does not fit in 64 bits when rounded.
    FLEX_INVALID_SIZE = 2,
    // A directive that contradicts itself, or `near` names an allocation that is not live.
    FLEX_INVALID_PLACEMENT = 3,
    // The handle is of no live allocation: freed before, null, or garbage.
    FLEX_UNKNOWN_ALLOCATION = 4,
    // A domain that the device does not have.
    FLEX_UNKNOWN_DOMAIN = 5,
    // A layout of regions that cannot be, or the device refused a region.
    FLEX_REGION_SETUP = 6,
    // The device failed at something else.
    FLEX_DEVICE_FAILURE = 7,
    // An invariant of the allocator does not hold: a bug of it, or of a program that wrote where it should not.
    FLEX_CORRUPTED = 8,
    // This process is a forked child: device memory belongs to its parent.
    FLEX_FORKED = 9,
    // A pointer that must not be null or is misaligned, or a number out of its range.
    FLEX_INVALID_ARGUMENT = 10,
    // The handle is of no allocator: released before, null, or garbage.
    FLEX_UNKNOWN_ALLOCATOR = 11,
    // The handle is of no callback: released or set before, null, or garbage.
    FLEX_UNKNOWN_CALLBACK = 12,
    // The calling thread is in a pressure callback and has not released the mutex: see `flex_unlocked`.
    FLEX_LOCKED = 13,
    // Not a lock that the calling thread may use now: it is unlocked, another thread's, of an ended call, or garbage.
    FLEX_NOT_LOCKED = 14,
    // The pressure callback answered `FLEX_FAIL`.
    FLEX_CALLBACK_FAILED = 15,
    // There is no such device here, or the device does not have what was asked for.
    FLEX_NOT_AVAILABLE = 16,
    // A bug of this library. The text says more, and standard error too.
    FLEX_INTERNAL = 17,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum FlexStatus FlexStatus;
#else
typedef int32_t FlexStatus;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The locked allocator, as a callback is handed it. Valid on the callback's thread until it returns, except inside
// `flex_unlocked` and `flex_lock_call`.
typedef struct FlexLock FlexLock;

// A handle to an allocator, counted. All 0 is no handle.
//
// Allocations keep what they need of their allocator: they stay valid when its last handle is released.
typedef struct FlexAllocator {
    // For comparing and storing only.
    uint64_t id;
} FlexAllocator;

// How an allocation relates to its domains.
typedef int32_t FlexPolicy;

// What memory is for. The two never mix.
typedef int32_t FlexMemoryType;

// A handle to an allocation. All 0 is no handle. It is stale once the allocation is freed, for ever.
typedef struct FlexAllocation {
    // For comparing and storing only.
    uint64_t id;
} FlexAllocation;

// Where an allocation goes and what it is for. With all bytes 0 it is bound, for tensors, and lacks a domain.
typedef struct FlexDirective {
    // `FLEX_BIND` or `FLEX_INTERLEAVE`.
    FlexPolicy policy;
    // `FLEX_TENSOR` or `FLEX_PROGRAM`.
    FlexMemoryType memory_type;
    // The domains, in order; duplicates are kept. May be null if `domain_count` is 0.
    const uint32_t *domains;
    // How many domains are listed.
    size_t domain_count;
    // An allocation whose domains to use if none are listed; it must be live. All 0 for none.
    struct FlexAllocation near;
} FlexDirective;

// The sizes of an allocation.
typedef struct FlexAllocationInfo {
    // Bytes asked for.
    uint64_t requested_bytes;
    // Bytes taken: the sizes of the chunks together.
    uint64_t size_bytes;
    // How many chunks there are: 1, or one for each domain if interleaved.
    size_t chunk_count;
} FlexAllocationInfo;

// One contiguous part of an allocation.
typedef struct FlexChunk {
    // The device's name for the region: its base address, or an index.
    uint64_t region_id;
    // Where the chunk starts in the region, in bytes; a multiple of 128.
    uint64_t offset_bytes;
    // Its size, a multiple of 128.
    uint64_t size_bytes;
    // The domain it lies in.
    uint32_t domain;
} FlexChunk;

// Which region a request tries first.
typedef int32_t FlexRegionOrder;

// How an allocator is set up. All 0 is the default.
typedef struct FlexOptions {
    // `FLEX_MOST_FREE` or `FLEX_LEAST_FREE`.
    FlexRegionOrder region_order;
    // Flags, added up.
    uint32_t flags;
} FlexOptions;

// What a callback thinks of calling it again. Whatever it answers, what counts is what the next search finds.
typedef int32_t FlexVerdict;

// Why nothing was found.
typedef int32_t FlexPressureCause;

// A request that the allocator could not serve. Valid while the callback runs.
typedef struct FlexPressureRequest {
    // Bytes asked for.
    uint64_t requested_bytes;
    // Free bytes in the regions it may use, when its first search failed.
    uint64_t free_bytes;
    // The largest free block in those regions, when its first search failed.
    uint64_t largest_free_bytes;
    // The domains it may use.
    const uint32_t *domains;
    // How many there are.
    size_t domain_count;
    // How often the callback has been called for this request, from 1.
    uint32_t attempt;
    // `FLEX_EXHAUSTED` or `FLEX_FRAGMENTED`.
    FlexPressureCause cause;
} FlexPressureRequest;

// What an allocator calls when its regions are exhausted: on the requesting thread, with the allocator mutex held.
//
// Several threads may be in it at once. It must return: a C++ exception that leaves it, or `longjmp` or
// `pthread_exit` out of it, ends the process or is undefined. Answers that are no verdict mean `FLEX_GIVE_UP`.
typedef FlexVerdict (*FlexPressureCallback)(struct FlexLock *lock,
                                            const struct FlexPressureRequest *request,
                                            void *arg);

// What ends an argument that is no longer used. It must return, as a callback must.
typedef void (*FlexDestroy)(void *arg);

// A handle to a callback that was taken out of an allocator. All 0 is no handle.
typedef struct FlexCallback {
    // For comparing and storing only.
    uint64_t id;
} FlexCallback;

// What `flex_unlocked` runs. It must return, as a callback must.
typedef void (*FlexBody)(void *arg);

// A quantity that rises and falls.
typedef struct FlexStat {
    // The value now.
    uint64_t current;
    // The highest value since the peaks were reset.
    uint64_t peak;
    // The sum of all increases since the sums were reset.
    uint64_t allocated;
    // The sum of all decreases since the sums were reset.
    uint64_t freed;
} FlexStat;

// Counters of program memory.
typedef struct FlexProgramStatistics {
    // Bytes in occupied blocks, rounded sizes.
    struct FlexStat allocated_bytes;
    // Bytes asked for by the owners of the occupied blocks.
    struct FlexStat requested_bytes;
    // Occupied blocks.
    struct FlexStat allocation;
    // Usable bytes of the acquired regions.
    struct FlexStat reserved_bytes;
    // Usable bytes of all program regions, acquired or not.
    uint64_t capacity_bytes;
    // Bytes in free blocks; a region not acquired is one free block.
    uint64_t free_bytes;
} FlexProgramStatistics;

// Everything counted for one allocator, at one moment. Tensor memory, unless it says otherwise.
typedef struct FlexStatistics {
    // Bytes in occupied blocks, rounded sizes.
    struct FlexStat allocated_bytes;
    // Bytes asked for by the owners of the occupied blocks.
    struct FlexStat requested_bytes;
    // Bytes in blocks that are occupied or wait for the device; today the occupied ones.
    struct FlexStat active_bytes;
    // Usable bytes of the acquired regions.
    struct FlexStat reserved_bytes;
    // Bytes in free blocks of regions that hold at least one occupied block.
    struct FlexStat inactive_split_bytes;
    // Occupied blocks; an interleaved allocation counts once per chunk.
    struct FlexStat allocation;
    // Occupied blocks and those that wait for the device; today the occupied ones.
    struct FlexStat active;
    // Acquired regions.
    struct FlexStat segment;
    // Free blocks of regions that hold at least one occupied block.
    struct FlexStat inactive_split;
    // Requests that ended in an out-of-memory error, of either memory type.
    uint64_t num_ooms;
    // Requests whose first search failed and that were searched for again, of either memory type.
    uint64_t num_alloc_retries;
    // Usable bytes of all tensor regions, acquired or not.
    uint64_t capacity_bytes;
    // Bytes in free blocks; a region not acquired is one free block.
    uint64_t free_bytes;
    // The largest free block, in bytes.
    uint64_t largest_free_bytes;
    // Program memory.
    struct FlexProgramStatistics program;
} FlexStatistics;

// What an allocator has counted of memory pressure. Times in nanoseconds.
typedef struct FlexPressureStatistics {
    // Requests whose first search failed although some state of the device could serve them.
    uint64_t events;
    // Events that ended with memory.
    uint64_t rescued;
    // Events that ended without.
    uint64_t failed;
    // Rescued events that ran no collection of their own.
    uint64_t coalesced;
    // Young collections that ran for a request of this device.
    uint64_t young_collections;
    // Full collections that ran for a request of this device.
    uint64_t full_collections;
    // Bytes of this device freed by the gate's collections, on the threads that ran them.
    uint64_t reclaimed_bytes;
    // Bytes of this device freed inside any collection, the program's own included.
    uint64_t collection_freed_bytes;
    // Time spent in the collections counted here.
    uint64_t collection_time_ns;
    // The longest of them.
    uint64_t collection_max_ns;
    // Collections that outlived the deadline of the request they ran for.
    uint64_t collectors_abandoned;
    // Requests for which no collection ran, by reason.
    uint64_t skipped[FLEX_SKIP_REASONS];
} FlexPressureStatistics;

// Why no collection ran for a request: places in `FlexPressureStatistics.skipped`.
typedef uint32_t FlexSkipReason;

// The one with the most free memory.
#define FLEX_MOST_FREE 0

// The one with the least that can serve: packs into few regions.
#define FLEX_LEAST_FREE 1

// One chunk in any one of the listed domains.
#define FLEX_BIND 0

// One chunk in each listed domain, in order.
#define FLEX_INTERLEAVE 1

// Data of tensors.
#define FLEX_TENSOR 0

// Programs of the device.
#define FLEX_PROGRAM 1

// If the search fails, call again: at most 64 times for one request.
#define FLEX_RETRY 0

// If the search fails, the request has failed.
#define FLEX_GIVE_UP 1

// Fail the request now, without a search: `flex_allocate` returns `FLEX_CALLBACK_FAILED`.
#define FLEX_FAIL 2

// Less is free than was asked for.
#define FLEX_EXHAUSTED 0

// Enough is free, but no block fits.
#define FLEX_FRAGMENTED 1

// The policy is `off`.
#define FLEX_SKIP_POLICY 0

// The policy is `respect_disable` and the program has disabled its collector.
#define FLEX_SKIP_DISABLED 1

// The thread was already inside a collection or a pressure callback.
#define FLEX_SKIP_REENTRANT 2

// The interpreter is shutting down.
#define FLEX_SKIP_FINALIZING 3

// The process is a forked child.
#define FLEX_SKIP_FORKED 4

// The deadline of the request passed before a collection could run.
#define FLEX_SKIP_TIMEOUT 5

// There is no interpreter, or no callback.
#define FLEX_SKIP_UNINITIALIZED 6

// The thread belongs to another interpreter.
#define FLEX_SKIP_INTERPRETER 7

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Allocates at least `bytes` bytes; each chunk is rounded up to 128. Free it with `flex_free`.
//
// If the device is exhausted, the pressure callback of the allocator runs on this thread, and whatever that runs.
// Hold no lock that such code could want.
//
// # Safety
// `directive` is null (bound to domain 0, for tensors) or valid for a read, and so are its domains for their count.
// `allocation` is null (an error) or valid for a write.
FlexStatus flex_allocate(struct FlexAllocator allocator,
                         uint64_t bytes,
                         const struct FlexDirective *directive,
                         struct FlexAllocation *allocation);

// Frees an allocation, on any thread. Never waits for the allocator mutex, and runs no pressure callback.
//
// In a pressure callback that has not unlocked, the handle is stale at once and the memory is free when it unlocks.
FlexStatus flex_free(struct FlexAllocation allocation);

// The sizes of an allocation.
//
// # Safety
// `info` is null (an error) or valid for a write.
FlexStatus flex_allocation_info(struct FlexAllocation allocation, struct FlexAllocationInfo *info);

// One chunk of an allocation, by its place: from 0, in the order of the domains.
//
// # Safety
// `chunk` is null (an error) or valid for a write.
FlexStatus flex_chunk(struct FlexAllocation allocation, size_t index, struct FlexChunk *chunk);

// The host's address of a chunk, valid until the allocation is freed. `FLEX_NOT_AVAILABLE` if the host cannot reach
// the memory of the device; that of simulated devices it can.
//
// # Safety
// `address` is null (an error) or valid for a write.
FlexStatus flex_host_address(struct FlexAllocation allocation,
                             size_t chunk_index,
                             void **address);

// Makes an allocator on a simulated device of its own with one tensor region of `capacity_bytes`, rounded down to 128,
// and beside it a program region of a sixteenth of that, 64 MiB at most. Memory is committed when it is touched.
// Release the handle with `flex_allocator_release`.
//
// # Safety
// `options` is null (the defaults) or valid for a read, `allocator` is null (an error) or valid for a write.
FlexStatus flex_allocator_create_uniform(uint64_t capacity_bytes,
                                         const struct FlexOptions *options,
                                         struct FlexAllocator *allocator);

// Makes an allocator on a simulated device of its own with the hardware's layout: `max_regions` equal regions of at
// most 16 GiB, spread evenly over `domain_count` domains, the first `program_regions` of domain 0 for programs and the
// rest for tensors. The hardware has 7 regions, 1 domain, and 1 region for programs.
//
// # Safety
// `options` is null (the defaults) or valid for a read, `allocator` is null (an error) or valid for a write.
FlexStatus flex_allocator_create_spyre(uint64_t total_bytes,
                                       uint32_t max_regions,
                                       uint32_t domain_count,
                                       uint32_t program_regions,
                                       const struct FlexOptions *options,
                                       struct FlexAllocator *allocator);

// Adds a reference to a handle: it then takes one more release.
FlexStatus flex_allocator_retain(struct FlexAllocator allocator);

// Gives up a reference to a handle. With the last one the handle is stale, and the allocator ends when its last
// allocation is freed. In a pressure callback that has not unlocked, that happens when it does.
FlexStatus flex_allocator_release(struct FlexAllocator allocator);

// Returns unused memory to where it came from: wholly free regions to the device, or the pages of free blocks to the
// host. `returned_bytes` may be null.
//
// # Safety
// `returned_bytes` is null or valid for a write.
FlexStatus flex_empty_cache(struct FlexAllocator allocator,
                            uint64_t *returned_bytes);

// Checks every invariant of an allocator; `FLEX_CORRUPTED` names the first that does not hold. Walks all blocks.
FlexStatus flex_validate(struct FlexAllocator allocator);

// The allocator of the device `spyre:<index>` of the Python process that this library is part of: the same memory
// and the same garbage collection as tensors have. Release the handle with `flex_allocator_release`.
//
// `FLEX_NOT_AVAILABLE` in the stand-alone library, before `torch_spyre` is imported, and for an index of no device.
//
// # Safety
// `allocator` is null (an error) or valid for a write.
FlexStatus flex_device_allocator(int32_t index,
                                 struct FlexAllocator *allocator);

// Makes `callback` the memory-pressure callback of an allocator, with `arg` for every call. Null takes the callback
// away; `arg` and `destroy` then mean nothing.
//
// `destroy` may be null. Else it is called with `arg` once, after the last call of the callback has returned: at once
// or later, on any thread, with no mutex held, but never in a forked child. If this function fails it is not called.
//
// The callback may be replaced at any time, also while it runs: calls that run end with the old one. The previous
// callback goes to `*previous`, to be put back with `flex_restore_pressure_callback`, called with `flex_lock_call`,
// or given up with `flex_callback_release`; all 0 if there was none. If `previous` is null it is given up at once.
// `*previous` is written, under the allocator mutex, before the new callback can be called, which may read it.
// The devices of a Python process have one already, which collects garbage: keep it and call it.
//
// # Safety
// The functions are what their types say and, with `arg`, may be used from any thread, the callback by several at
// once. `previous` is null or valid for a write.
FlexStatus flex_set_pressure_callback(struct FlexAllocator allocator,
                                      FlexPressureCallback callback,
                                      void *arg,
                                      FlexDestroy destroy,
                                      struct FlexCallback *previous);

// Puts a callback back that was taken out of this or another allocator; its handle is stale then. `previous` is as
// for `flex_set_pressure_callback`.
//
// # Safety
// `previous` is null or valid for a write.
FlexStatus flex_restore_pressure_callback(struct FlexAllocator allocator,
                                          struct FlexCallback callback,
                                          struct FlexCallback *previous);

// Gives up a callback that was taken out of an allocator. Its argument is destroyed when no call of it runs any more.
FlexStatus flex_callback_release(struct FlexCallback callback);

// Releases the allocator mutex, runs `body(arg)`, and takes the mutex again. Inside `body` everything is allowed: to
// wait, to free, to allocate while there is room, to attach to an interpreter; `lock` is not valid there. Count on
// nothing across it: other threads allocate and free meanwhile.
//
// `FLEX_FORKED` if `body` has forked and this is the child; the mutex is left alone then.
//
// # Safety
// `lock` is what a callback was handed, or any other value (an error). `body` is null (an error) or what its type
// says.
FlexStatus flex_unlocked(struct FlexLock *lock,
                         FlexBody body,
                         void *arg);

// Calls a callback that was taken out of an allocator, with this lock and its request, and says what it answered.
// `FLEX_CALLBACK_FAILED` if it failed.
//
// # Safety
// `lock` is what a callback was handed, or any other value (an error). `verdict` is null (an error) or valid for a
// write.
FlexStatus flex_lock_call(struct FlexLock *lock,
                          struct FlexCallback callback,
                          FlexVerdict *verdict);

// Tries to serve the request now, without the mutex being released for it. Once it is served it stays so.
//
// # Safety
// `lock` is what a callback was handed, or any other value (an error). `served` is null (an error) or valid for a
// write.
FlexStatus flex_lock_search(struct FlexLock *lock,
                            bool *served);

// From now on whoever frees memory serves this request before others that register later, until it ends.
//
// # Safety
// `lock` is what a callback was handed, or any other value (an error).
FlexStatus flex_lock_register(struct FlexLock *lock);

// The statistics of the allocator that is locked. Frees that are pending are done first, a batch at a time; between
// two batches the mutex is free for a moment.
//
// # Safety
// `lock` is what a callback was handed, or any other value (an error). `statistics` is null (an error) or valid for a
// write.
FlexStatus flex_lock_statistics(struct FlexLock *lock,
                                struct FlexStatistics *statistics);

// Whether frees of other threads have begun and not finished: a search a little later may find more.
//
// # Safety
// `lock` is what a callback was handed, or any other value (an error). `in_flight` is null (an error) or valid for a
// write.
FlexStatus flex_lock_frees_in_flight(struct FlexLock *lock,
                                     bool *in_flight);

// One consistent snapshot of an allocator's statistics. Memory whose free is pending is freed first.
//
// # Safety
// `statistics` is null (an error) or valid for a write.
FlexStatus flex_statistics(struct FlexAllocator allocator, struct FlexStatistics *statistics);

// Starts every peak again at the value of now.
FlexStatus flex_reset_peak_statistics(struct FlexAllocator allocator);

// Starts the sums again at 0: allocated, freed, and the counts of retries and failures.
FlexStatus flex_reset_accumulated_statistics(struct FlexAllocator allocator);

// What an allocator has counted of memory pressure. Exact when no request is under way.
//
// # Safety
// `statistics` is null (an error) or valid for a write.
FlexStatus flex_pressure_statistics(struct FlexAllocator allocator,
                                    struct FlexPressureStatistics *statistics);

// Starts the pressure statistics again at 0.
FlexStatus flex_reset_pressure_statistics(struct FlexAllocator allocator);

// The text of the last function that failed on this thread: never null, empty if none has. It is valid until the next
// function fails on this thread. A success does not change it.
const char *flex_last_error(void);

// The name of a status, such as "FLEX_OUT_OF_MEMORY"; "(unknown status)" for other numbers. Never null.
const char *flex_status_name(int32_t status);

// The `FLEX_ABI_VERSION` of the library, to compare with that of the header.
uint32_t flex_abi_version(void);

// The version of the library, such as "0.1.0".
const char *flex_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FLEX_H */
