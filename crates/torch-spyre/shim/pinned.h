// Pinned host memory, as far as torch can tell.
#pragma once

#include <c10/core/Allocator.h>

namespace spyre {

// Hands out host memory that is_pinned_address() recognises. A simulated device transfers nothing by DMA, so
// it is ordinary memory.
c10::Allocator* pinned_allocator();

bool is_pinned_address(const void* address) noexcept;

}  // namespace spyre
