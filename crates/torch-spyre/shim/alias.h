// CPU tensors over the bytes of spyre tensors, and the way back.
//
// Simulated device memory is host-addressable, so a CPU kernel can work on it directly: an alias is a CPU
// tensor with the same bytes, sizes, strides, quantizer, and lazy conjugation and negation. Its storage keeps
// the spyre storage alive. Sparse tensors, which have no bytes of their own, are in sparse.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace spyre {

// For calling CPU operators on aliases: autograd and autocast have had their turn on the spyre tensors.
struct BelowAutograd {
    c10::impl::ExcludeDispatchKeyGuard guard{c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                             c10::autocast_dispatch_keyset};
};

// A CPU storage over the bytes of `storage`.
c10::Storage alias_storage(const c10::Storage& storage);

// Whether `storage` was made by alias_storage(), and neither has a kernel given it other memory nor was it
// released.
bool is_alias_storage(const c10::Storage& storage) noexcept;

// Lets `alias`, made by alias_storage(), stand for `storage` instead of what it stands for.
void redirect_alias_storage(const c10::Storage& alias, const c10::Storage& storage);

// Lets `alias`, made by alias_storage(), stand for nothing. It can be redirected.
void release_alias_storage(const c10::Storage& alias) noexcept;

// Neither quantized nor nested, nor sparse.
bool is_plain(const at::Tensor& tensor) noexcept;

// Gives a plain tensor the sizes, strides, offset, and lazy conjugation and negation of `like`, and whether
// it is a wrapped number.
void give_layout(const at::Tensor& tensor, const at::Tensor& like);

// A CPU tensor over the bytes of `tensor`, with the storage `storage` made by alias_storage().
at::Tensor alias_with_storage(const at::Tensor& tensor, c10::Storage storage);

// A CPU tensor over the bytes of `tensor`, which is on spyre.
at::Tensor cpu_alias(const at::Tensor& tensor);

// cpu_alias() for a spyre tensor; any other, also an undefined one, as it is.
at::Tensor cpu_alias_if_spyre(const at::Tensor& tensor);
std::optional<at::Tensor> cpu_alias_if_spyre(const std::optional<at::Tensor>& tensor);

// Uninitialised memory of a device whose index was checked.
at::Tensor empty_spyre(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                       c10::DeviceIndex device);

// A spyre tensor with the layout and the values of `cpu`, in memory of its own. An undefined tensor stays
// undefined.
at::Tensor copy_to_spyre(const at::Tensor& cpu, c10::DeviceIndex device);

// Throws NotImplementedError, naming `operation`, unless `cpu`, which is not sparse, can become a spyre
// tensor: strided.
void check_representable(const at::Tensor& cpu, const char* operation);

// A view of the spyre tensor `base` with the layout and the type of the CPU tensor `like`.
at::Tensor view_like(const at::Tensor& base, const at::Tensor& like);

// A spyre tensor over the memory that `alias` stands for.
at::Tensor spyre_tensor_behind(const at::Tensor& alias);

}  // namespace spyre
