// Allocating, freeing on other threads, stale handles, placement. Through flex.hpp, and flex.h where a call
// must fail.
#include <array>
#include <cstring>
#include <mutex>
#include <thread>

#include "check.hpp"
#include "flex.hpp"

using flex::Allocation;
using flex::Allocator;
using flex::Directive;

static std::uint64_t allocated_bytes(const Allocator& allocator) {
    return allocator.statistics().allocated_bytes.current;
}

TEST(sizes_are_rounded_and_memory_is_the_hosts_too) {
    Allocator allocator = Allocator::uniform(1 << 20);
    Allocation allocation = allocator.allocate(129);
    CHECK(allocation.requested_bytes() == 129 && allocation.size_bytes() == 256);
    const auto chunks = allocation.chunks();
    CHECK(chunks.size() == 1 && chunks[0].domain == 0 && chunks[0].offset_bytes % 128 == 0);
    std::memset(allocation.host_address(), 7, 256);
    CHECK(static_cast<unsigned char*>(allocation.host_address())[255] == 7);
    const FlexStatistics statistics = allocator.statistics();
    CHECK(statistics.allocated_bytes.current == 256 && statistics.requested_bytes.current == 129);
    CHECK(statistics.capacity_bytes == 1 << 20 && statistics.free_bytes == (1 << 20) - 256);
    allocation.reset();
    CHECK(allocated_bytes(allocator) == 0);
    CHECK(allocator.empty_cache() == 1 << 20);
    allocator.validate();
}

TEST(a_stale_handle_is_found_out_and_changes_nothing) {
    Allocator allocator = Allocator::uniform(1 << 20);
    const FlexAllocation stale = allocator.allocate(4096).release();
    CHECK_STATUS(FLEX_OK, flex_free(stale));
    const Allocation reused = allocator.allocate(4096);  // In the same place of table and device.
    CHECK_STATUS(FLEX_UNKNOWN_ALLOCATION, flex_free(stale));
    CHECK(std::string(flex_last_error()).find("freed before") != std::string::npos);
    FlexAllocationInfo info;
    FlexChunk chunk;
    void* address = nullptr;
    CHECK_STATUS(FLEX_UNKNOWN_ALLOCATION, flex_allocation_info(stale, &info));
    CHECK_STATUS(FLEX_UNKNOWN_ALLOCATION, flex_chunk(stale, 0, &chunk));
    CHECK_STATUS(FLEX_UNKNOWN_ALLOCATION, flex_host_address(stale, 0, &address));
    for (std::uint64_t garbage : {0ull, 1ull, ~0ull, 0xdeadbeefdeadbeefull}) {
        CHECK_STATUS(FLEX_UNKNOWN_ALLOCATION, flex_free(FlexAllocation{garbage}));
        CHECK_STATUS(FLEX_UNKNOWN_ALLOCATOR, flex_validate(FlexAllocator{garbage}));
        CHECK_STATUS(FLEX_UNKNOWN_ALLOCATOR, flex_allocator_release(FlexAllocator{garbage}));
        CHECK_STATUS(FLEX_UNKNOWN_CALLBACK, flex_callback_release(FlexCallback{garbage}));
    }
    CHECK_STATUS(FLEX_UNKNOWN_ALLOCATION, flex_free(FlexAllocation{allocator.handle().id}));
    CHECK(allocated_bytes(allocator) == 4096 && reused.size_bytes() == 4096);
    allocator.validate();
}

TEST(bad_arguments_have_a_status_and_a_text) {
    Allocator allocator = Allocator::uniform(1 << 20);
    const FlexAllocator handle = allocator.handle();
    FlexAllocation out{42};
    CHECK_STATUS(FLEX_INVALID_ARGUMENT, flex_allocate(handle, 128, nullptr, nullptr));
    CHECK_STATUS(FLEX_INVALID_ARGUMENT, flex_statistics(handle, nullptr));
    alignas(8) char bytes[64];
    CHECK_STATUS(FLEX_INVALID_ARGUMENT,
                 flex_allocate(handle, 128, nullptr, reinterpret_cast<FlexAllocation*>(bytes + 1)));
    CHECK_STATUS(FLEX_INVALID_SIZE, flex_allocate(handle, 0, nullptr, &out));
    CHECK_STATUS(FLEX_INVALID_SIZE, flex_allocate(handle, ~0ull, nullptr, &out));
    FlexDirective directive{};
    CHECK_STATUS(FLEX_INVALID_PLACEMENT, flex_allocate(handle, 128, &directive, &out));
    directive.domain_count = 1;
    CHECK_STATUS(FLEX_INVALID_ARGUMENT, flex_allocate(handle, 128, &directive, &out));
    const std::uint32_t domain = 9;
    directive.domains = &domain;
    CHECK_STATUS(FLEX_UNKNOWN_DOMAIN, flex_allocate(handle, 128, &directive, &out));
    directive.policy = 77;
    CHECK_STATUS(FLEX_INVALID_ARGUMENT, flex_allocate(handle, 128, &directive, &out));
    CHECK(out.id == 42);
    FlexAllocator made;
    const FlexOptions unknown_flag{FLEX_MOST_FREE, 1u << 31};
    CHECK_STATUS(FLEX_INVALID_ARGUMENT, flex_allocator_create_uniform(1 << 20, &unknown_flag, &made));
    CHECK_STATUS(FLEX_REGION_SETUP, flex_allocator_create_spyre(1 << 20, 7, 2, 1, nullptr, &made));
    CHECK_STATUS(FLEX_NOT_AVAILABLE, flex_device_allocator(0, &made));
    CHECK(CAUGHT(flex::OutOfMemory, allocator.allocate(2 << 20)).status() == FLEX_OUT_OF_MEMORY);
    CHECK(allocated_bytes(allocator) == 0);
}

TEST(handles_of_allocators_are_counted_and_allocations_outlive_them) {
    FlexAllocator handle;
    CHECK_STATUS(FLEX_OK, flex_allocator_create_uniform(1 << 20, nullptr, &handle));
    CHECK_STATUS(FLEX_OK, flex_allocator_retain(handle));
    CHECK_STATUS(FLEX_OK, flex_allocator_release(handle));
    FlexAllocation allocation;
    CHECK_STATUS(FLEX_OK, flex_allocate(handle, 4096, nullptr, &allocation));
    CHECK_STATUS(FLEX_OK, flex_allocator_release(handle));
    CHECK_STATUS(FLEX_UNKNOWN_ALLOCATOR, flex_allocator_retain(handle));
    CHECK_STATUS(FLEX_UNKNOWN_ALLOCATOR, flex_allocator_release(handle));
    void* address = nullptr;
    CHECK_STATUS(FLEX_OK, flex_host_address(allocation, 0, &address));
    std::memset(address, 1, 4096);
    CHECK_STATUS(FLEX_INVALID_ARGUMENT, flex_host_address(allocation, 1, &address));
    CHECK_STATUS(FLEX_OK, flex_free(allocation));
}

TEST(placement) {
    Allocator allocator = Allocator::spyre(8 << 20, 8, 4);
    const Allocation wide = allocator.allocate(1000, Directive::interleave({2, 0, 3}));
    const auto chunks = wide.chunks();
    CHECK(chunks.size() == 3 && chunks[0].domain == 2 && chunks[1].domain == 0 && chunks[2].domain == 3);
    for (const FlexChunk& chunk : chunks) CHECK(chunk.size_bytes == 384);
    const Allocation beside = allocator.allocate(128, Directive::near(wide, FLEX_INTERLEAVE));
    CHECK(beside.chunks()[0].domain == 2 && beside.chunks()[2].domain == 3);
    CHECK(allocator.allocate(128, Directive::bind({1})).chunks()[0].domain == 1);
    Allocation gone = allocator.allocate(128);
    const Directive near_gone = Directive::near(gone);
    gone.reset();
    CHECK(CAUGHT(flex::Error, allocator.allocate(128, near_gone)).status() == FLEX_INVALID_PLACEMENT);
    const Directive narrow = Directive::interleave({1});
    CHECK(CAUGHT(flex::Error, allocator.allocate(128, narrow)).status() == FLEX_INVALID_PLACEMENT);
}

TEST(programs_have_memory_of_their_own) {
    Allocator allocator = Allocator::uniform(1 << 20);
    const Allocation tensors = allocator.allocate(1 << 20);
    const Allocation program = allocator.allocate(64 << 10, Directive{}.program());
    CHECK(program.chunks()[0].region_id != tensors.chunks()[0].region_id);
    const FlexStatistics statistics = allocator.statistics();
    CHECK(statistics.program.allocated_bytes.current == 64 << 10);
    CHECK(statistics.program.capacity_bytes == 64 << 10 && statistics.allocated_bytes.current == 1 << 20);
}

// Threads allocate, fill, and hand their allocations to one another, who check and free them.
TEST(allocations_are_freed_on_other_threads) {
    Allocator allocator = Allocator::spyre(64 << 20, 8, 2);
    std::mutex mutex;
    std::vector<std::pair<Allocation, unsigned char>> shared;
    auto work = [&](unsigned seed) {
        for (int step = 0; step < 400; ++step) {
            seed = seed * 1664525u + 1013904223u;
            const std::uint64_t bytes = 1 + (seed >> 16) % 8192;
            const auto byte = static_cast<unsigned char>(seed >> 8);
            const Directive directive = Directive::bind({step % 2 ? 0u : 1u, step % 2 ? 1u : 0u});
            Allocation fresh = allocator.allocate(bytes, directive);
            std::memset(fresh.host_address(), byte, bytes);
            std::pair<Allocation, unsigned char> taken;
            {
                std::lock_guard<std::mutex> lock(mutex);
                shared.emplace_back(std::move(fresh), byte);
                std::swap(shared[seed % shared.size()], shared.back());
                taken = std::move(shared.back());
                shared.pop_back();
            }
            const auto* data = static_cast<const unsigned char*>(taken.first.host_address());
            const std::uint64_t size = taken.first.requested_bytes();
            CHECK(data[0] == taken.second && data[size - 1] == taken.second);
        }
    };
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 8; ++seed) threads.emplace_back(work, seed);
    for (std::thread& thread : threads) thread.join();
    shared.clear();
    allocator.validate();
    const FlexStatistics statistics = allocator.statistics();
    CHECK(statistics.allocated_bytes.current == 0 && statistics.allocation.allocated == 8 * 400);
    CHECK(statistics.num_ooms == 0);
}

// Two threads free the same handle: one of them is told.
TEST(of_two_frees_at_once_one_wins) {
    Allocator allocator = Allocator::uniform(1 << 20);
    for (int round = 0; round < 200; ++round) {
        const FlexAllocation allocation = allocator.allocate(128).release();
        std::array<FlexStatus, 2> statuses{};
        std::thread other([&] { statuses[1] = flex_free(allocation); });
        statuses[0] = flex_free(allocation);
        other.join();
        CHECK((statuses[0] == FLEX_OK) != (statuses[1] == FLEX_OK));
        CHECK(statuses[0] == FLEX_UNKNOWN_ALLOCATION || statuses[1] == FLEX_UNKNOWN_ALLOCATION);
    }
    CHECK(allocated_bytes(allocator) == 0);
}
