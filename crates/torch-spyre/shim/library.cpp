// Operators of our own, for what the Python package needs of C++. They spare the shim from linking
// libtorch_python.
#include <torch/library.h>

#include <limits>

#include "device.h"
#include "generator.h"

namespace spyre {
namespace {

c10::DeviceIndex checked_index(int64_t device) {
    // Torch's index type is a byte; what does not fit must not wrap around to a device that exists.
    if (device < 0 || device > std::numeric_limits<c10::DeviceIndex>::max()) {
        ensure_ready();
        TORCH_CHECK(false, "spyre error: invalid device ordinal: got device index ", device,
                    ", but the number of spyre devices is ", static_cast<int>(device_count()));
    }
    const auto index = static_cast<c10::DeviceIndex>(device);
    check_device_index(index);
    return index;
}

void check_device(int64_t device) { checked_index(device); }

at::Generator default_generator_of(int64_t device) { return default_generator(checked_index(device)); }

}  // namespace

TORCH_LIBRARY(spyre, m) {
    // Throws RuntimeError unless a device has this index.
    m.def("check_device(int device) -> ()", check_device);
    // The generator object that operations on this device draw from; never None.
    m.def("default_generator(int device) -> Generator?", default_generator_of);
}

}  // namespace spyre
