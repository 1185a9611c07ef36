// Random number generators of the device. They are CPU generators under another label, so that the same seed
// gives the same numbers on both.
#pragma once

#include <ATen/core/Generator.h>

namespace spyre {

// The generator that a device's operations use where none is given. Throws on an invalid index.
const at::Generator& default_generator(c10::DeviceIndex device);

// A new generator with torch's default seed. Throws on an invalid index.
at::Generator new_generator(c10::DeviceIndex device);

// The CPU generator inside a spyre generator. Throws RuntimeError, worded as torch does, for any other
// generator.
at::Generator cpu_generator(const at::Generator& generator);

}  // namespace spyre
