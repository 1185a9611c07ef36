/* flex.h from C99: everything a small program needs, a pressure callback in C, and a forked child. */
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "flex.h"

#define EXPECT(status, call)                                                                     \
    do {                                                                                         \
        FlexStatus got = (call);                                                                 \
        if (got != (status)) {                                                                   \
            fprintf(stderr, "%d: %s: %s\n", __LINE__, flex_status_name(got), flex_last_error()); \
            return 1;                                                                            \
        }                                                                                        \
    } while (0)

struct cache {
    FlexAllocation allocation;
    int calls, destroyed;
};

static void drop_cache(void* arg) {
    struct cache* cache = arg;
    flex_free(cache->allocation);
}

static FlexVerdict on_pressure(FlexLock* lock, const FlexPressureRequest* request, void* arg) {
    struct cache* cache = arg;
    FlexStatistics statistics;
    cache->calls++;
    if (flex_lock_statistics(lock, &statistics) != FLEX_OK) return FLEX_FAIL;
    if (statistics.free_bytes >= request->requested_bytes) return FLEX_FAIL;
    if (flex_unlocked(lock, drop_cache, cache) != FLEX_OK) return FLEX_FAIL;
    return FLEX_GIVE_UP;
}

static void destroy(void* arg) { ((struct cache*)arg)->destroyed++; }

static int in_child(FlexAllocator allocator, FlexAllocation allocation) {
    FlexAllocator made;
    FlexAllocation more;
    FlexPressureStatistics statistics;
    EXPECT(FLEX_FORKED, flex_allocate(allocator, 128, NULL, &more));
    EXPECT(FLEX_FORKED, flex_free(allocation));
    EXPECT(FLEX_FORKED, flex_pressure_statistics(allocator, &statistics));
    EXPECT(FLEX_FORKED, flex_allocator_release(allocator));
    EXPECT(FLEX_FORKED, flex_allocator_create_uniform(4096, NULL, &made));
    return strstr(flex_last_error(), "fork") == NULL;
}

int main(void) {
    struct cache cache = {{0}, 0, 0};
    FlexAllocator allocator;
    FlexAllocation allocation;
    FlexOptions options = {FLEX_LEAST_FREE, FLEX_POISON | FLEX_REGION_INDEX};
    uint32_t domain = 0;
    FlexDirective directive = {FLEX_BIND, FLEX_TENSOR, &domain, 1, {0}};
    FlexChunk chunk;
    uint64_t returned = 0;
    void* address;
    int child_status;
    pid_t child;

    if (flex_abi_version() != FLEX_ABI_VERSION || flex_version()[0] == 0) return 2;
    EXPECT(FLEX_OK, flex_allocator_create_uniform(65536, &options, &allocator));
    EXPECT(FLEX_OK, flex_allocate(allocator, 65536, &directive, &cache.allocation));
    EXPECT(FLEX_OUT_OF_MEMORY, flex_allocate(allocator, 1, NULL, &allocation));
    EXPECT(FLEX_OK, flex_set_pressure_callback(allocator, on_pressure, &cache, destroy, NULL));
    EXPECT(FLEX_OK, flex_allocate(allocator, 1000, NULL, &allocation));
    EXPECT(FLEX_OK, flex_chunk(allocation, 0, &chunk));
    EXPECT(FLEX_OK, flex_host_address(allocation, 0, &address));
    if (cache.calls != 1 || cache.destroyed != 0 || chunk.size_bytes != 1024 || chunk.region_id > 1) return 3;
    if (((unsigned char*)address)[0] != 0xcd) return 4; /* Poisoned. */

    fflush(NULL);
    child = fork();
    if (child == 0) _exit(in_child(allocator, allocation));
    if (child < 0 || waitpid(child, &child_status, 0) != child) return 5;
    if (!WIFEXITED(child_status) || WEXITSTATUS(child_status) != 0) return 6;

    EXPECT(FLEX_OK, flex_free(allocation));
    EXPECT(FLEX_OK, flex_empty_cache(allocator, &returned));
    EXPECT(FLEX_OK, flex_validate(allocator));
    EXPECT(FLEX_OK, flex_allocator_release(allocator));
    if (returned == 0 || cache.destroyed != 1) return 7;
    puts("ok");
    return 0;
}
