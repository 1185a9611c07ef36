// The thread's current device, and the checks of a device index.
#include "device.h"

#include <c10/util/Exception.h>

#include <array>

#include "spyre_abi.h"

namespace spyre {
namespace {

thread_local c10::DeviceIndex this_threads_device = 0;

}  // namespace

c10::DeviceIndex device_count() noexcept { return static_cast<c10::DeviceIndex>(spyre_rs_device_count()); }

c10::DeviceIndex current_device() noexcept { return this_threads_device; }

void set_current_device_unchecked(c10::DeviceIndex index) noexcept { this_threads_device = index; }

void ensure_ready() {
    std::array<char, 2048> text{};
    const int32_t status = spyre_rs_ensure_ready({text.data(), text.size()});
    TORCH_CHECK(status == SPYRE_OK, text.data());
}

void check_device_index(int64_t index) {
    const auto count = device_count();
    if (C10_LIKELY(index >= 0 && index < count)) {
        return;
    }
    ensure_ready();
    TORCH_CHECK(false, "spyre error: invalid device ordinal: got device index ", index,
                ", but the number of spyre devices is ", static_cast<int>(count));
}

c10::Device resolve_device(std::optional<c10::Device> device) {
    const auto index = device && device->has_index() ? device->index() : current_device();
    check_device_index(index);
    return {kSpyre, index};
}

}  // namespace spyre

extern "C" int32_t spyre_shim_current_device() noexcept { return spyre::current_device(); }

extern "C" void spyre_shim_set_current_device(int32_t device) noexcept {
    spyre::set_current_device_unchecked(static_cast<c10::DeviceIndex>(device));
}
