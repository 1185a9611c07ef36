// The device index: how many devices there are, which one a thread uses, and whether an index is valid.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace spyre {

inline constexpr auto kSpyre = c10::DeviceType::PrivateUse1;

// 0 while the configuration is invalid.
c10::DeviceIndex device_count() noexcept;

// This thread's current device.
c10::DeviceIndex current_device() noexcept;

// Makes `index` the thread's current device without checking it.
void set_current_device_unchecked(c10::DeviceIndex index) noexcept;

// Throws RuntimeError, worded after CUDA's "invalid device ordinal", unless `index` names a device; torch's
// index type is a byte, so a wider index is checked before it is narrowed. Where there are no devices at all
// the reason is thrown instead: a bad configuration, or a forked child.
void check_device_index(int64_t index);

// `device` as a checked device with an index; the thread's current one where `device` is absent or has no
// index.
c10::Device resolve_device(std::optional<c10::Device> device);

// Throws RuntimeError with the reason unless the devices can be used.
void ensure_ready();

// Makes a device current for a scope. The index was checked before.
class CurrentDeviceScope {
  public:
    explicit CurrentDeviceScope(c10::DeviceIndex index) noexcept : previous_(current_device()) {
        set_current_device_unchecked(index);
    }
    ~CurrentDeviceScope() { set_current_device_unchecked(previous_); }
    CurrentDeviceScope(const CurrentDeviceScope&) = delete;
    CurrentDeviceScope& operator=(const CurrentDeviceScope&) = delete;

  private:
    c10::DeviceIndex previous_;
};

}  // namespace spyre
