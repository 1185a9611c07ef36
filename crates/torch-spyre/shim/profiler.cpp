// What torch's older profiler, torch.autograd.profiler.profile(use_kineto=False), asks of a device: marks in
// time.
//
// The device has finished an operator when its call returns, so a mark is the host's time. Reports of memory
// come from the allocator, for every profiler.
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>
#include <functional>
#include <memory>

#include "device.h"

namespace spyre {
namespace {

using Clock = std::chrono::steady_clock;
using torch::profiler::impl::ProfilerVoidEventStub;

class SpyreProfilerStubs final : public torch::profiler::impl::ProfilerStubs {
  public:
    void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
        if (device != nullptr) {
            *device = current_device();
        }
        *event = std::make_shared<Clock::time_point>(Clock::now());
        if (cpu_ns != nullptr) {
            *cpu_ns = c10::getTime();
        }
    }

    // In microseconds.
    float elapsed(const ProfilerVoidEventStub* start, const ProfilerVoidEventStub* end) const override {
        const auto time = [](const ProfilerVoidEventStub* event) {
            return *static_cast<const Clock::time_point*>(event->get());
        };
        return std::chrono::duration<float, std::micro>(time(end) - time(start)).count();
    }

    // There is no other tool to show ranges and marks in.
    void mark(const char*) const override {}
    void rangePush(const char*) const override {}
    void rangePop() const override {}

    bool enabled() const override { return device_count() > 0; }

    void onEachDevice(std::function<void(int)> function) const override {
        for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
            const CurrentDeviceScope scope(index);
            function(index);
        }
    }

    void synchronize() const override {}
};

const bool registered = [] {
    static SpyreProfilerStubs stubs;
    torch::profiler::impl::registerPrivateUse1Methods(&stubs);
    return true;
}();

}  // namespace
}  // namespace spyre
