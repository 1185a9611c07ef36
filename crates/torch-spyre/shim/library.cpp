// Operators of our own, for what the Python package needs of C++. They spare the shim from linking
// libtorch_python.
#include <torch/library.h>

#include "device.h"
#include "generator.h"

namespace spyre {
namespace {

at::Generator default_generator_of(int64_t device) {
    check_device_index(device);
    return default_generator(static_cast<c10::DeviceIndex>(device));
}

}  // namespace

TORCH_LIBRARY(spyre, m) {
    // Throws RuntimeError unless a device has this index.
    m.def("check_device(int device) -> ()", check_device_index);
    // The generator object that operations on this device draw from; never None.
    m.def("default_generator(int device) -> Generator?", default_generator_of);
}

}  // namespace spyre
