// Sparse tensors in both of torch's forms.
#include "sparse.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>

#include "device.h"

namespace spyre {
namespace {

bool is_coordinate(const at::Tensor& tensor) noexcept { return tensor.layout() == c10::kSparse; }

at::SparseTensorImpl* coordinate(const at::Tensor& tensor) noexcept {
    return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::SparseCsrTensorImpl* compressed(const at::Tensor& tensor) noexcept {
    return static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
}

bool same_parts(const Parts& left, const Parts& right) noexcept {
    return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                      [](const auto& one, const auto& other) { return one.is_same(other); });
}

c10::DispatchKey key_of(const at::Tensor& like, c10::Device device) noexcept {
    if (is_coordinate(like)) {
        return device.is_cpu() ? c10::DispatchKey::SparseCPU : c10::DispatchKey::SparsePrivateUse1;
    }
    return device.is_cpu() ? c10::DispatchKey::SparseCsrCPU : c10::DispatchKey::SparseCsrPrivateUse1;
}

}  // namespace

Parts parts_of(const at::Tensor& sparse) {
    if (is_coordinate(sparse)) {
        return {coordinate(sparse)->indices(), coordinate(sparse)->values()};
    }
    const auto* const impl = compressed(sparse);
    return {impl->compressed_indices(), impl->plain_indices(), impl->values()};
}

at::Tensor sparse_like(const at::Tensor& like, const Parts& parts) {
    const auto device = parts.back().device();
    const c10::DispatchKeySet keys(key_of(like, device));
    // torch makes empty parts first, on the current device.
    const CurrentDeviceScope scope(device.is_cpu() ? current_device() : device.index());
    auto sparse = is_coordinate(like) ? at::detail::make_tensor<at::SparseTensorImpl>(keys, like.dtype())
                                      : at::detail::make_tensor<at::SparseCsrTensorImpl>(
                                            keys, device, like.layout(), like.dtype());
    change_sparse(sparse, like, parts);
    return sparse;
}

void change_sparse(const at::Tensor& sparse, const at::Tensor& like, const Parts& parts) {
    const bool same = same_parts(parts_of(sparse), parts);
    if (!is_coordinate(like)) {
        if (!same || !sparse.sizes().equals(like.sizes())) {
            compressed(sparse)->set_member_tensors(parts[0], parts[1], parts[2], like.sizes());
        }
        return;
    }
    const auto* const from = coordinate(like);
    auto* const to = coordinate(sparse);
    if (!sparse.sizes().equals(like.sizes()) || to->sparse_dim() != from->sparse_dim()) {
        to->raw_resize_(from->sparse_dim(), from->dense_dim(), like.sizes());
    }
    if (!same) {
        to->set_indices_and_values_unsafe(parts[0], parts[1]);
    }
    to->set_coalesced(from->coalesced());
}

}  // namespace spyre
