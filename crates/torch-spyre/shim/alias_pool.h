// Aliases of dense tensors, used again and again: making a tensor and a storage takes six allocations.
//
// Each thread keeps a few idle ones. An idle alias holds no device memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace spyre {

// A CPU tensor over the bytes of `tensor`, which is on spyre, with a storage of its own.
at::Tensor pooled_alias(const at::Tensor& tensor);

// Takes an alias back. One that somebody still has, or that was changed into something else than
// pooled_alias() returns, is only released.
void give_back(at::Tensor alias) noexcept;

}  // namespace spyre
