// Device memory as torch sees it: the allocators that hand out memory of the Rust core.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace spyre {

// The allocator of tensors on `spyre`. It serves the thread's current device.
c10::DeviceAllocator* device_allocator();

// Hands out memory of one device, whichever is current, labelled as CPU memory. It backs the CPU aliases of
// that device's tensors, so that an output which a CPU kernel resizes lands in the right device's memory at
// once.
c10::Allocator* alias_allocator(c10::DeviceIndex device);

// Whether `data` is memory of the Rust core, under either label.
bool is_spyre_memory(const c10::DataPtr& data) noexcept;

}  // namespace spyre
