// The reports to torch's profiler, which listens on the threads that it profiles and on no collector thread.
//
// Lock: the requests' mutex, a leaf; no report is made under it. A forked child does not take it: a thread
// that it does not have may hold it.
#include "memory_reports.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "device.h"
#include "spyre_abi.h"

namespace spyre {
namespace {

using Profiler = std::shared_ptr<c10::ThreadLocalDebugInfo>;

struct Requests {
    std::mutex mutex;
    std::vector<Profiler> profilers;  // Of the requests under way. Guarded by `mutex`.
    std::atomic<size_t> count{0};  // How many they are: lets frees pass by the mutex while nobody profiles.
};

Requests& requests() {
    static auto* const instance = new Requests;  // Frees may come at any time.
    return *instance;
}

// The profiler of a request under way, or null. Its thread waits in that request, so it goes on listening.
Profiler waiting_profiler() {
    if (requests().count.load(std::memory_order_relaxed) == 0) {
        return nullptr;
    }
    const std::scoped_lock lock(requests().mutex);
    return requests().profilers.empty() ? nullptr : requests().profilers.front();
}

}  // namespace

void ProfiledRequest::begin() {
    auto profiler = c10::ThreadLocalDebugInfo::current();
    if (profiler == nullptr || spyre_rs_is_forked()) {
        return;  // All threads are profiled, collector threads too.
    }
    const std::scoped_lock lock(requests().mutex);
    requests().profilers.push_back(profiler);
    requests().count.store(requests().profilers.size(), std::memory_order_relaxed);
    profiler_ = std::move(profiler);
}

void ProfiledRequest::end() noexcept {
    if (spyre_rs_is_forked()) {
        return;
    }
    const std::scoped_lock lock(requests().mutex);
    auto& profilers = requests().profilers;
    profilers.erase(std::find(profilers.begin(), profilers.end(), profiler_));
    requests().count.store(profilers.size(), std::memory_order_relaxed);
}

}  // namespace spyre

extern "C" bool spyre_shim_profiling(bool collecting) noexcept {
    try {
        return c10::memoryProfilingEnabled() || (collecting && spyre::waiting_profiler() != nullptr);
    } catch (...) {
        return false;
    }
}

extern "C" void spyre_shim_report_usage(void* data, int64_t nbytes, size_t total_allocated,
                                        size_t total_reserved, int32_t device) noexcept {
    try {
        const auto report = [&] {
            c10::reportMemoryUsageToProfiler(
                data, nbytes, total_allocated, total_reserved,
                c10::Device(spyre::kSpyre, static_cast<c10::DeviceIndex>(device)));
        };
        if (c10::memoryProfilingEnabled()) {
            report();
        } else if (auto profiler = spyre::waiting_profiler()) {
            const c10::DebugInfoGuard listening(std::move(profiler));
            report();
        }
    } catch (...) {  // Losing a report is better than failing an allocation or a deleter.
    }
}
