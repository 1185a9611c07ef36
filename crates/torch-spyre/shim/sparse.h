// Sparse tensors: taking one apart into the dense tensors that it consists of, and putting one together.
//
// Coordinate tensors consist of indices and values, compressed ones of compressed indices, plain indices and
// values. The parts are ordinary tensors on the device of the whole.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace spyre {

using Parts = c10::SmallVector<at::Tensor, 3>;

// Whether `tensor` has one of the sparse layouts.
inline bool is_sparse(const at::Tensor& tensor) noexcept {
    constexpr auto sparse =
        c10::DispatchKeySet(c10::DispatchKey::Sparse) | c10::DispatchKeySet(c10::DispatchKey::SparseCsr);
    return tensor.key_set().has_any(sparse);
}

// The dense tensors that a sparse tensor consists of.
Parts parts_of(const at::Tensor& sparse);

// A sparse tensor of the same kind and shape as `like` with other parts, on their device: CPU or spyre.
at::Tensor sparse_like(const at::Tensor& like, const Parts& parts);

// Gives the sparse tensor `sparse` the shape of `like`, of the same layout, and other parts.
void change_sparse(const at::Tensor& sparse, const at::Tensor& like, const Parts& parts);

}  // namespace spyre
