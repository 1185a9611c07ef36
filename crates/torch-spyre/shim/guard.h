// torch's way to switch devices and streams.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace spyre {

const c10::impl::DeviceGuardImplInterface* device_guard();

}  // namespace spyre
