// Kernels that every backend has to provide itself: creating tensors, views without copies, copies between
// devices, storages, and reading one element.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense_cpu_dispatch.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "alias.h"
#include "allocator.h"
#include "device.h"

namespace spyre {
namespace {

// ---- creation

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
    TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == c10::kStrided, "a tensor of the layout ",
                                *layout, " cannot be created without its parts on spyre");
    TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
}

// torch.use_deterministic_algorithms() promises that uninitialised memory always reads the same.
at::Tensor filled_if_deterministic(at::Tensor tensor) {
    const auto& context = at::globalContext();
    if (C10_UNLIKELY(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())) {
        at::native::fill_empty_deterministic_(tensor);
    }
    return tensor;
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> memory_format) {
    check_options(layout, pin_memory);
    const CurrentDeviceScope scope(resolve_device(device).index());
    return filled_if_deterministic(at::detail::empty_generic(
        sizes, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
        c10::dtype_or_default(dtype), memory_format));
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool> pin_memory) {
    check_options(layout, pin_memory);
    return filled_if_deterministic(
        empty_spyre(sizes, strides, c10::dtype_or_default(dtype), resolve_device(device).index()));
}

// Gives no memory at all: torch replaces a tensor with the key ZeroTensor before anything looks at its bytes.
class ZeroTensorAllocator final : public c10::Allocator {
  public:
    c10::DataPtr allocate(size_t) override { return {nullptr, c10::Device(kSpyre, current_device())}; }
    void copy_data(void*, const void*, size_t) const override {}
};

at::Tensor efficient_zero_tensor(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                                 std::optional<bool> pin_memory) {
    static auto* const allocator = new ZeroTensorAllocator;
    check_options(layout, pin_memory);
    const CurrentDeviceScope scope(resolve_device(device).index());
    const c10::DispatchKeySet keys{c10::DispatchKey::PrivateUse1, c10::DispatchKey::ZeroTensor};
    return at::detail::empty_generic(sizes, allocator, keys, c10::dtype_or_default(dtype), std::nullopt);
}

// torch changes the sizes before it asks for the memory. They are put back if there is none: the tensor would
// reach beyond its storage.
const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef sizes,
                          std::optional<c10::MemoryFormat> memory_format) {
    const CurrentDeviceScope scope(self.device().index());
    const auto old_sizes = self.sizes().vec();
    const auto old_strides = self.strides().vec();
    try {
        return at::native::resize_(self, sizes, memory_format);
    } catch (...) {
        self.unsafeGetTensorImpl()->set_sizes_and_strides(old_sizes, old_strides);
        throw;
    }
}

// ---- storages

at::Tensor& set_to_nothing(at::Tensor& self) {
    const CurrentDeviceScope scope(self.device().index());
    return at::native::set_storage_cpu_(
        self, c10::Storage(c10::Storage::use_byte_size_t(), 0, device_allocator(), true), 0, {0}, {});
}

at::Tensor& set_to_tensor(at::Tensor& self, const at::Tensor& source) {
    const CurrentDeviceScope scope(self.device().index());
    return at::native::set_tensor_(self, source);
}

at::Tensor& set_to_storage(at::Tensor& self, c10::Storage source) {
    const CurrentDeviceScope scope(self.device().index());
    return at::native::set_(self, std::move(source));
}

at::Tensor& set_to_part_of_storage(at::Tensor& self, c10::Storage source, int64_t storage_offset,
                                   c10::IntArrayRef sizes, c10::IntArrayRef strides) {
    const CurrentDeviceScope scope(self.device().index());
    return at::native::set_storage_cpu_(self, std::move(source), storage_offset, sizes, strides);
}

// Whether `tensor.data = other` may replace the one by the other, also where they are on different devices.
// torch asks when a module is moved: it then keeps the parameters that optimizers and tied layers refer to.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
    const auto plain = [](const at::Tensor& tensor) {
        return tensor.key_set().has(c10::DispatchKey::Dense) &&
               (tensor.is_cpu() || tensor.is_privateuseone());
    };
    return self.key_set() == from.key_set() || (plain(self) && plain(from));
}

// ---- copies

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
    const BelowAutograd scope;
    cpu_alias_if_spyre(destination).copy_(cpu_alias_if_spyre(source), non_blocking);
    return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& destination) {
    destination.resize_(source.sizes());
    return copy_from(source, destination, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
    return at::cpu::_local_scalar_dense(cpu_alias(self));
}

// A lazy clone shares the memory until one of the two is written, by a contract between torch and allocators
// whose blocks are known by their address alone. This one copies at once.
at::Tensor lazy_clone(const at::Tensor& self) { return self.clone(); }

// ---- others

// The memory is in use by no stream once the call that uses it has returned.
void record_stream(at::Tensor&, c10::Stream) {}

// The CPU kernel draws from the CPU's default generator; this one draws the same numbers from the device's.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double probability,
                                                  std::optional<bool> train) {
    const auto mask_options = input.options().dtype(c10::kBool);
    if (!train.value_or(true)) {
        return {input.clone(), at::ones_like(input, mask_options)};
    }
    const double kept = 1.0 - probability;
    auto mask = at::empty_like(input, mask_options);
    mask.bernoulli_(kept);
    return {at::mul(input, mask).mul_(kept == 0.0 ? 0.0 : 1.0 / kept), mask};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("empty.memory_format", empty);
    m.impl("empty_strided", empty_strided);
    m.impl("_efficientzerotensor", efficient_zero_tensor);
    m.impl("resize_", resize_);
    m.impl("as_strided", at::native::as_strided_tensorimpl);
    m.impl("_reshape_alias", at::native::_reshape_alias);
    m.impl("view", at::native::view);
    m.impl("set_", set_to_nothing);
    m.impl("set_.source_Tensor", set_to_tensor);
    m.impl("set_.source_Storage", set_to_storage);
    m.impl("set_.source_Storage_storage_offset", set_to_part_of_storage);
    m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
    m.impl("_copy_from", copy_from);
    m.impl("_copy_from_and_resize", copy_from_and_resize);
    m.impl("_local_scalar_dense", local_scalar_dense);
    m.impl("_lazy_clone", lazy_clone);
    m.impl("record_stream", record_stream);
    m.impl("native_dropout", native_dropout);
}

TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
    m.impl("_copy_from", copy_from);
    // Rebuilding a tensor that was saved gives it the storage that was saved.
    m.impl("set_.source_Storage_storage_offset", at::native::set_storage_quantized_);
}
TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) { m.impl("_copy_from", copy_from); }

}  // namespace spyre
