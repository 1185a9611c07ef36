// c10::DeviceAllocator on the Rust core.
//
// Policy (searching, collecting, what an error says) is Rust's. This file turns status codes into exceptions
// and counters into torch's structures. It is the only place that throws OutOfMemoryError.
#include "allocator.h"

#include <c10/util/Exception.h>

#include <array>
#include <vector>

#include "device.h"
#include "memory_reports.h"
#include "spyre_abi.h"

namespace spyre {
namespace {

// Long enough for the out-of-memory report with all hints.
using MessageBuffer = std::array<char, 4096>;

SpyreStatistics statistics_of(c10::DeviceIndex device) {
    check_device_index(device);
    SpyreStatistics statistics{};
    MessageBuffer text{};
    const int32_t status = spyre_rs_statistics(device, &statistics, {text.data(), text.size()});
    TORCH_CHECK(status == SPYRE_OK, text.data());
    return statistics;
}

void report_out_of_memory(size_t nbytes, c10::DeviceIndex device) noexcept {
    try {
        if (!c10::memoryProfilingEnabled()) {
            return;
        }
        const SpyreStatistics statistics = statistics_of(device);
        c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(nbytes), statistics.allocated_bytes.current,
                                         statistics.reserved_bytes.current, c10::Device(kSpyre, device));
    } catch (...) {  // A report that fails must not hide the error it is about.
    }
}

c10::DataPtr allocate_on(c10::DeviceIndex device, size_t nbytes, c10::Device label) {
    void* data = nullptr;
    void* context = nullptr;
    MessageBuffer text;
    text[0] = '\0';
    const ProfiledRequest profiled;
    const int32_t status = spyre_rs_allocate(device, nbytes, &data, &context, {text.data(), text.size()});
    if (C10_UNLIKELY(status == SPYRE_OUT_OF_MEMORY)) {
        report_out_of_memory(nbytes, device);
        TORCH_CHECK_WITH(OutOfMemoryError, false, text.data());
    }
    TORCH_CHECK(status == SPYRE_OK, text.data());
    return {data, context, &spyre_rs_free, label};
}

c10::CachingAllocator::StatArray torch_stat(const SpyreStat& stat) {
    c10::CachingAllocator::StatArray array{};
    auto& aggregate = array[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    aggregate.current = stat.current;
    aggregate.peak = stat.peak;
    aggregate.allocated = stat.allocated;
    aggregate.freed = stat.freed;
    return array;
}

class SpyreAllocator final : public c10::DeviceAllocator {
  public:
    c10::DataPtr allocate(size_t nbytes) override {
        const auto device = current_device();
        return allocate_on(device, nbytes, c10::Device(kSpyre, device));
    }

    // A block's context is its handle, not its address, so torch's raw interface does not apply.
    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

    void copy_data(void* destination, const void* source, size_t nbytes) const override {
        default_copy_data(destination, source, nbytes);
    }

    bool initialized() override { return device_count() > 0; }

    void emptyCache(c10::MempoolId_t) override { spyre_rs_empty_cache(); }

    // Everything completes in order, so memory may be used again as soon as it is free.
    void recordStream(const c10::DataPtr&, c10::Stream) override {}

    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
        const SpyreStatistics statistics = statistics_of(device);
        c10::CachingDeviceAllocator::DeviceStats result;
        result.allocation = torch_stat(statistics.allocation);
        result.segment = torch_stat(statistics.segment);
        result.active = torch_stat(statistics.active);
        result.inactive_split = torch_stat(statistics.inactive_split);
        result.allocated_bytes = torch_stat(statistics.allocated_bytes);
        result.reserved_bytes = torch_stat(statistics.reserved_bytes);
        result.active_bytes = torch_stat(statistics.active_bytes);
        result.inactive_split_bytes = torch_stat(statistics.inactive_split_bytes);
        result.requested_bytes = torch_stat(statistics.requested_bytes);
        result.num_ooms = statistics.num_ooms;
        result.num_alloc_retries = statistics.num_alloc_retries;
        result.num_device_alloc = statistics.segment.allocated;
        result.num_device_free = statistics.segment.freed;
        return result;
    }

    void resetAccumulatedStats(c10::DeviceIndex device) override {
        check_device_index(device);
        spyre_rs_reset_accumulated(device);
    }

    void resetPeakStats(c10::DeviceIndex device) override {
        check_device_index(device);
        spyre_rs_reset_peak(device);
    }

    std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
        const SpyreStatistics statistics = statistics_of(device);
        return {statistics.free_bytes, statistics.capacity_bytes};
    }
};

class AliasAllocator final : public c10::Allocator {
  public:
    explicit AliasAllocator(c10::DeviceIndex device) : device_(device) {}

    c10::DataPtr allocate(size_t nbytes) override {
        return allocate_on(device_, nbytes, c10::Device(c10::kCPU));
    }
    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
    void copy_data(void* destination, const void* source, size_t nbytes) const override {
        default_copy_data(destination, source, nbytes);
    }

  private:
    c10::DeviceIndex device_;
};

}  // namespace

c10::DeviceAllocator* device_allocator() {
    static auto* const allocator = new SpyreAllocator;  // Outlives every tensor.
    return allocator;
}

c10::Allocator* alias_allocator(c10::DeviceIndex device) {
    // The number of devices never changes once there is a tensor to alias. Leaked, as they outlive every
    // tensor.
    static const auto* const allocators = [] {
        auto* made = new std::vector<AliasAllocator*>;
        for (c10::DeviceIndex each = 0; each < device_count(); ++each) {
            made->push_back(new AliasAllocator(each));
        }
        return made;
    }();
    return (*allocators)[static_cast<size_t>(device)];
}

bool is_spyre_memory(const c10::DataPtr& data) noexcept { return data.get_deleter() == &spyre_rs_free; }

}  // namespace spyre
