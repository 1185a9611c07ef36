// Making CPU aliases of spyre tensors, and spyre tensors of CPU results.
#include "alias.h"

#include <ATen/EmptyTensor.h>

#include <cstring>

#include "allocator.h"
#include "device.h"

namespace spyre {
namespace {

using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;

// The deleter of an alias: its context is one reference to the spyre storage.
void release_aliased(void* context) { StoragePtr::reclaim(static_cast<c10::StorageImpl*>(context)); }

void copy_lazy_bits(const at::Tensor& from, c10::TensorImpl* to) {
    if (C10_UNLIKELY(from.is_conj())) {
        to->_set_conj(true);
    }
    if (C10_UNLIKELY(from.is_neg())) {
        to->_set_neg(true);
    }
}

}  // namespace

c10::Storage alias_storage(const c10::Storage& storage) {
    auto* const source = storage.unsafeGetStorageImpl();
    void* const data = source->mutable_data();
    void* const context = StoragePtr::reclaim_copy(source).release();
    return c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), source->nbytes(),
        c10::DataPtr(data, context, &release_aliased, c10::Device(c10::kCPU)),
        alias_allocator(source->device().index()), source->resizable());
}

bool is_alias_storage(const c10::Storage& storage) noexcept {
    return storage.data_ptr().get_deleter() == &release_aliased;
}

at::Tensor alias_with_storage(const at::Tensor& tensor, c10::Storage storage) {
    auto alias = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    auto* const impl = alias.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (C10_UNLIKELY(tensor.unsafeGetTensorImpl()->is_wrapped_number())) {
        impl->set_wrapped_number(true);
    }
    copy_lazy_bits(tensor, impl);
    return alias;
}

at::Tensor cpu_alias(const at::Tensor& tensor) {
    return alias_with_storage(tensor, alias_storage(tensor.storage()));
}

at::Tensor cpu_alias_if_spyre(const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_privateuseone() ? cpu_alias(tensor) : tensor;
}

std::optional<at::Tensor> cpu_alias_if_spyre(const std::optional<at::Tensor>& tensor) {
    return tensor ? std::optional(cpu_alias_if_spyre(*tensor)) : std::nullopt;
}

at::Tensor empty_spyre(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                       c10::DeviceIndex device) {
    const CurrentDeviceScope scope(device);
    return at::detail::empty_strided_generic(sizes, strides, device_allocator(),
                                             c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
}

at::Tensor copy_to_spyre(const at::Tensor& cpu, c10::DeviceIndex device) {
    if (!cpu.defined()) {
        return cpu;
    }
    auto result = empty_spyre(cpu.sizes(), cpu.strides(), cpu.scalar_type(), device);
    const size_t nbytes =
        at::detail::computeStorageNbytes(cpu.sizes(), cpu.strides(), cpu.dtype().itemsize());
    if (nbytes > 0) {
        std::memcpy(result.mutable_data_ptr(), cpu.const_data_ptr(), nbytes);
    }
    copy_lazy_bits(cpu, result.unsafeGetTensorImpl());
    return result;
}

void check_representable(const at::Tensor& cpu, const char* operation) {
    TORCH_CHECK_NOT_IMPLEMENTED(cpu.layout() == c10::kStrided && !cpu.is_quantized() && !cpu.is_nested(), "'",
                                operation,
                                "' is not available on spyre: its result is not a dense strided tensor");
}

at::Tensor view_like(const at::Tensor& base, const at::Tensor& like) {
    const auto keys = base.key_set().remove(c10::DispatchKey::Conjugate).remove(c10::DispatchKey::Negative);
    auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()),
                                                         keys, like.dtype());
    auto* const impl = view.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    copy_lazy_bits(like, impl);
    return view;
}

}  // namespace spyre
