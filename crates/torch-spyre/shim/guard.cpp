// DeviceGuardImplInterface: current device, streams and events.
//
// The device executes every operation before the call returns, so a stream is a label that orders nothing,
// and an event is complete as soon as it is recorded: it is the host time of its recording.
#include "guard.h"

#include <c10/core/DeviceCapability.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <limits>

#include "device.h"

namespace spyre {
namespace {

using Clock = std::chrono::steady_clock;

struct Event {
    Clock::time_point recorded_at;
};

constexpr size_t kMaxDevices = std::numeric_limits<c10::DeviceIndex>::max() + 1;

// This thread's current stream on each device; 0 is the default stream.
thread_local std::array<c10::StreamId, kMaxDevices> this_threads_streams{};

// The number of a stream, above the bits of its priority.
std::atomic<c10::StreamId> next_stream_number{1};

// A stream's id ends in its priority, negated: the priorities are 0 to -3, where lower is more urgent.
constexpr int kPriorityBits = 2;
constexpr int kMostUrgent = -((1 << kPriorityBits) - 1);

class SpyreGuard final : public c10::impl::DeviceGuardImplInterface {
  public:
    c10::DeviceType type() const override { return kSpyre; }

    c10::Device exchangeDevice(c10::Device device) const override {
        const auto previous = getDevice();
        setDevice(device);
        return previous;
    }

    c10::Device getDevice() const override { return {kSpyre, current_device()}; }

    void setDevice(c10::Device device) const override {
        TORCH_CHECK(device.type() == kSpyre, "expected a spyre device, but got ", device);
        check_device_index(device.index());
        set_current_device_unchecked(device.index());
    }

    void uncheckedSetDevice(c10::Device device) const noexcept override {
        set_current_device_unchecked(device.index());
    }

    c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }

    // Every data type that the CPU has.
    c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

    // ---- streams

    c10::Stream getStream(c10::Device device) const override {
        const auto resolved = resolve_device(device);
        return c10::Stream(c10::Stream::UNSAFE, resolved, this_threads_streams[resolved.index()]);
    }

    c10::Stream getDefaultStream(c10::Device device) const override {
        return c10::Stream(c10::Stream::DEFAULT, resolve_device(device));
    }

    c10::Stream getStreamFromGlobalPool(c10::Device device, bool urgent) const override {
        return getNewStream(device, urgent ? kMostUrgent : 0);
    }

    // As with CUDA, a priority beyond the range is the most urgent one.
    c10::Stream getNewStream(c10::Device device, int priority) const override {
        TORCH_CHECK(priority <= 0, "Expected spyre stream priority to be less than or equal to 0, got ",
                    priority);
        const auto number = next_stream_number.fetch_add(1, std::memory_order_relaxed);
        const auto urgency = -std::max(priority, kMostUrgent);
        return c10::Stream(c10::Stream::UNSAFE, resolve_device(device), number << kPriorityBits | urgency);
    }

    c10::Stream exchangeStream(c10::Stream stream) const override {
        check_device_index(stream.device_index());
        auto& current = this_threads_streams[stream.device_index()];
        const c10::Stream previous(c10::Stream::UNSAFE, stream.device(), current);
        current = stream.id();
        return previous;
    }

    bool queryStream(const c10::Stream&) const override { return true; }
    void synchronizeStream(const c10::Stream&) const override {}
    void synchronizeDevice(c10::DeviceIndex device) const override { check_device_index(device); }
    void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

    // ---- events

    void record(void** event, const c10::Stream& stream, c10::DeviceIndex device,
                c10::EventFlag) const override {
        TORCH_CHECK(device == -1 || device == stream.device_index(), "Event device index ",
                    static_cast<int>(device), " does not match recording stream's device index ",
                    static_cast<int>(stream.device_index()), ".");
        if (*event == nullptr) {
            *event = new Event;
        }
        static_cast<Event*>(*event)->recorded_at = Clock::now();
    }

    void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
        delete static_cast<Event*>(event);
    }
    void block(void*, const c10::Stream&) const override {}
    bool queryEvent(void*) const override { return true; }
    void synchronizeEvent(void*) const override {}

    double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
        TORCH_CHECK(start && end, "Both events must be recorded before calculating elapsed time.");
        const auto elapsed = static_cast<Event*>(end)->recorded_at - static_cast<Event*>(start)->recorded_at;
        return std::chrono::duration<double, std::milli>(elapsed).count();
    }
};

}  // namespace

const c10::impl::DeviceGuardImplInterface* device_guard() {
    static const auto* const guard = new SpyreGuard;
    return guard;
}

}  // namespace spyre
