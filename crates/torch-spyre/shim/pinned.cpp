// Host memory for Tensor.pin_memory() and DataLoader(pin_memory=True).
//
// torch asks of a bare address whether it is pinned, so the ranges that were handed out are kept. In a forked
// child the table's mutex may be held by a thread that does not exist there; the child leaves the table
// alone.
#include "pinned.h"

#include <c10/core/impl/alloc_cpu.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>

namespace spyre {
namespace {

struct Table {
    std::mutex mutex;
    std::map<uintptr_t, size_t> nbytes_by_start;  // Guarded by `mutex`.
    std::atomic<bool> forked{false};              // Set once, in the child.
};

Table& table() {
    static Table* const instance = [] {
        pthread_atfork(nullptr, nullptr, [] { table().forked.store(true, std::memory_order_relaxed); });
        return new Table;
    }();
    return *instance;
}

bool forked() noexcept { return table().forked.load(std::memory_order_relaxed); }

void release(void* data) noexcept {
    if (!forked()) {
        const std::scoped_lock lock(table().mutex);
        table().nbytes_by_start.erase(reinterpret_cast<uintptr_t>(data));
    }
    c10::free_cpu(data);
}

class PinnedAllocator final : public c10::Allocator {
  public:
    c10::DataPtr allocate(size_t nbytes) override {
        void* data = c10::alloc_cpu(nbytes);
        c10::DataPtr result(data, data, &release, c10::Device(c10::kCPU));
        if (data != nullptr && !forked()) {
            const std::scoped_lock lock(table().mutex);
            table().nbytes_by_start[reinterpret_cast<uintptr_t>(data)] = nbytes;
        }
        return result;
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void* destination, const void* source, size_t nbytes) const override {
        default_copy_data(destination, source, nbytes);
    }
};

}  // namespace

c10::Allocator* pinned_allocator() {
    static auto* const allocator = new PinnedAllocator;
    return allocator;
}

bool is_pinned_address(const void* address) noexcept {
    if (forked()) {
        return false;
    }
    const auto value = reinterpret_cast<uintptr_t>(address);
    const std::scoped_lock lock(table().mutex);
    auto next = table().nbytes_by_start.upper_bound(value);
    if (next == table().nbytes_by_start.begin()) {
        return false;
    }
    const auto& [start, nbytes] = *std::prev(next);
    return value - start < nbytes;
}

}  // namespace spyre
