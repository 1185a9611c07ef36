// Making CPU aliases of spyre tensors, and spyre tensors of CPU results.
#include "alias.h"

#include <ATen/EmptyTensor.h>
#include <ATen/NestedTensorImpl.h>
#include <ATen/quantized/QTensorImpl.h>

#include <cstring>

#include "allocator.h"
#include "device.h"

namespace spyre {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
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

at::QTensorImpl* quantized(const at::Tensor& tensor) noexcept {
    return static_cast<at::QTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::native::NestedTensorImpl* nested(const at::Tensor& tensor) noexcept {
    return static_cast<at::native::NestedTensorImpl*>(tensor.unsafeGetTensorImpl());
}

// A tensor over `storage` with the type and the layout of `like`.
at::Tensor plain_tensor_over(c10::Storage storage, const at::Tensor& like) {
    const DispatchKeySet keys(storage.device().is_cpu() ? DispatchKey::CPU : DispatchKey::PrivateUse1);
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
    give_layout(tensor, like);
    return tensor;
}

// The same for tensors of every kind. The sizes of a nested tensor are CPU tensors on every device.
at::Tensor tensor_over(c10::Storage storage, const at::Tensor& like) {
    if (C10_LIKELY(is_plain(like))) {
        return plain_tensor_over(std::move(storage), like);
    }
    const bool cpu = storage.device().is_cpu();
    if (like.is_nested()) {
        const DispatchKeySet keys(cpu ? DispatchKey::NestedTensorCPU : DispatchKey::NestedTensorPrivateUse1);
        return at::detail::make_tensor<at::native::NestedTensorImpl>(
            std::move(storage), keys, like.dtype(), nested(like)->get_nested_sizes(),
            nested(like)->get_nested_strides(), nested(like)->get_storage_offsets());
    }
    const DispatchKeySet keys(cpu ? DispatchKey::QuantizedCPU : DispatchKey::QuantizedPrivateUse1);
    auto tensor = at::detail::make_tensor<at::QTensorImpl>(std::move(storage), keys, like.dtype(),
                                                           quantized(like)->quantizer());
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    return tensor;
}

// A nested tensor has the memory of all its tensors, with gaps if it is a view.
at::Tensor copy_nested_to_spyre(const at::Tensor& cpu, c10::DeviceIndex device) {
    const auto& storage = cpu.storage();
    const auto memory = empty_spyre({static_cast<int64_t>(storage.nbytes())}, {1}, c10::kByte, device);
    if (storage.nbytes() > 0) {
        std::memcpy(memory.mutable_data_ptr(), storage.data(), storage.nbytes());
    }
    return tensor_over(memory.storage(), cpu);
}

// The bytes of a spyre storage, and a reference to it.
c10::DataPtr aliased_data(c10::StorageImpl* source) {
    void* const data = source->mutable_data();
    void* const context = StoragePtr::reclaim_copy(source).release();
    return {data, context, &release_aliased, c10::Device(c10::kCPU)};
}

}  // namespace

bool is_plain(const at::Tensor& tensor) noexcept {
    constexpr auto others = DispatchKeySet(DispatchKey::Quantized) |
                            DispatchKeySet(DispatchKey::NestedTensor) | DispatchKeySet(DispatchKey::Sparse) |
                            DispatchKeySet(DispatchKey::SparseCsr);
    return !tensor.key_set().has_any(others);
}

void give_layout(const at::Tensor& tensor, const at::Tensor& like) {
    auto* const impl = tensor.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    copy_lazy_bits(like, impl);
    if (C10_UNLIKELY(like.unsafeGetTensorImpl()->is_wrapped_number())) {
        impl->set_wrapped_number(true);
    }
}

c10::Storage alias_storage(const c10::Storage& storage) {
    auto* const source = storage.unsafeGetStorageImpl();
    return c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), source->nbytes(), aliased_data(source),
        alias_allocator(source->device().index()), source->resizable());
}

void redirect_alias_storage(const c10::Storage& alias, const c10::Storage& storage) {
    auto* const source = storage.unsafeGetStorageImpl();
    auto* const impl = alias.unsafeGetStorageImpl();
    impl->set_data_ptr_noswap(aliased_data(source));
    impl->set_nbytes(source->nbytes());
    impl->set_allocator(alias_allocator(source->device().index()));
    impl->set_resizable(source->resizable());
}

void release_alias_storage(const c10::Storage& alias) noexcept {
    alias.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
}

bool is_alias_storage(const c10::Storage& storage) noexcept {
    return storage.data_ptr().get_deleter() == &release_aliased;
}

at::Tensor alias_with_storage(const at::Tensor& tensor, c10::Storage storage) {
    return tensor_over(std::move(storage), tensor);
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
    if (C10_UNLIKELY(cpu.is_nested())) {
        return copy_nested_to_spyre(cpu, device);
    }
    auto result = empty_spyre(cpu.sizes(), cpu.strides(), cpu.scalar_type(), device);
    const size_t nbytes =
        at::detail::computeStorageNbytes(cpu.sizes(), cpu.strides(), cpu.dtype().itemsize());
    if (nbytes > 0) {
        std::memcpy(result.mutable_data_ptr(), cpu.const_data_ptr(), nbytes);
    }
    if (C10_UNLIKELY(cpu.is_quantized())) {
        auto quantized_result = tensor_over(result.storage(), cpu);
        quantized_result.unsafeGetTensorImpl()->set_storage_offset(0);
        return quantized_result;
    }
    copy_lazy_bits(cpu, result.unsafeGetTensorImpl());
    return result;
}

void check_representable(const at::Tensor& cpu, const char* operation) {
    TORCH_CHECK_NOT_IMPLEMENTED(cpu.layout() == c10::kStrided, "'", operation,
                                "' is not available on spyre: its result has the layout ", cpu.layout(),
                                ", which the device has not. Move the tensor to the CPU first");
}

at::Tensor view_like(const at::Tensor& base, const at::Tensor& like) {
    // The keys of the base are those of its kind.
    if (C10_UNLIKELY(!is_plain(base) || !is_plain(like))) {
        return tensor_over(base.storage(), like);
    }
    const auto keys = base.key_set().remove(c10::DispatchKey::Conjugate).remove(c10::DispatchKey::Negative);
    auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()),
                                                         keys, like.dtype());
    auto* const impl = view.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    copy_lazy_bits(like, impl);
    return view;
}

at::Tensor spyre_tensor_behind(const at::Tensor& alias) {
    auto* const behind = static_cast<c10::StorageImpl*>(alias.storage().data_ptr().get_context());
    return tensor_over(c10::Storage(StoragePtr::reclaim_copy(behind)), alias);
}

}  // namespace spyre
