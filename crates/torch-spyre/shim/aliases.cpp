// Aliases of dense, quantized and sparse tensors, and the way back.
#include "aliases.h"

#include <c10/util/Exception.h>

#include "alias.h"
#include "alias_pool.h"
#include "allocator.h"
#include "sparse.h"

namespace spyre {
namespace {

const c10::StorageImpl* storage_of(const at::Tensor& tensor) noexcept {
    return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

}  // namespace

Aliases::~Aliases() {
    for (auto& pair : pairs_) {
        give_back(std::move(pair.cpu));
    }
}

at::Tensor& Aliases::of(c10::MaybeOwned<at::Tensor> tensor, bool writable) {
    if (C10_UNLIKELY(is_sparse(*tensor))) {
        return of_sparse(std::move(tensor), writable);
    }
    const Pair* same_storage = nullptr;
    for (auto& pair : pairs_) {
        if (pair.device->is_same(*tensor)) {
            pair.writable |= writable;
            return pair.cpu;
        }
        if (storage_of(*pair.device) == storage_of(*tensor)) {
            same_storage = &pair;
        }
    }
    auto alias = C10_UNLIKELY(same_storage != nullptr)
                     ? alias_with_storage(*tensor, same_storage->cpu.storage())
                     : pooled_alias(*tensor);
    return pairs_.emplace_back(Pair{std::move(tensor), std::move(alias), writable}).cpu;
}

at::Tensor& Aliases::of_sparse(c10::MaybeOwned<at::Tensor> tensor, bool writable) {
    for (auto& pair : sparse_) {
        if (pair.device->is_same(*tensor)) {
            pair.writable |= writable;
            return pair.cpu;
        }
    }
    auto parts = parts_of(*tensor);
    for (auto& part : parts) {
        part = of(c10::MaybeOwned<at::Tensor>::owned(std::move(part)), writable);
    }
    auto alias = sparse_like(*tensor, parts);
    return sparse_.emplace_back(Pair{std::move(tensor), std::move(alias), writable}).cpu;
}

at::Tensor Aliases::result(const at::Tensor& cpu, c10::DeviceIndex device, const char* operation) {
    if (C10_UNLIKELY(is_sparse(cpu))) {
        return sparse_result(cpu, device, operation);
    }
    check_representable(cpu, operation);
    return is_alias_storage(cpu.storage()) ? argument_or_view(cpu, device) : copy_to_spyre(cpu, device);
}

at::Tensor Aliases::sparse_result(const at::Tensor& cpu, c10::DeviceIndex device, const char* operation) {
    for (const auto& pair : sparse_) {
        if (pair.cpu.is_same(cpu)) {
            return *pair.device;
        }
    }
    auto parts = parts_of(cpu);
    for (auto& part : parts) {
        part = result(part, device, operation);
    }
    return sparse_like(cpu, parts);
}

at::Tensor Aliases::argument_or_view(const at::Tensor& cpu, c10::DeviceIndex device) const {
    const Pair* base = nullptr;
    for (const auto& pair : pairs_) {
        if (pair.cpu.is_same(cpu)) {
            return *pair.device;
        }
        if (pair.cpu.storage().is_alias_of(cpu.storage())) {
            base = &pair;
        }
    }
    if (C10_LIKELY(base != nullptr)) {
        return view_like(*base->device, cpu);
    }
    // Not of an argument: a quantizer keeps the aliases of its scales, also where its tensor was copied from
    // another device.
    auto behind = spyre_tensor_behind(cpu);
    return behind.device().index() == device ? behind : copy_to_spyre(cpu, device);
}

void Aliases::write_back() {
    for (auto& pair : pairs_) {
        if (pair.writable) {
            take_over_memory(pair);
            take_over_layout(pair);
        }
    }
    for (auto& pair : sparse_) {
        if (pair.writable) {
            auto parts = parts_of(pair.cpu);
            for (auto& part : parts) {
                part = result(part, pair.device->device().index(), "a sparse result");
            }
            change_sparse(*pair.device, pair.cpu, parts);
        }
    }
}

void Aliases::take_over_memory(Pair& pair) {
    auto* const from = pair.cpu.storage().unsafeGetStorageImpl();
    auto* const to = pair.device->storage().unsafeGetStorageImpl();
    if (C10_LIKELY(from->data() == to->data() && from->nbytes() == to->nbytes())) {
        return;
    }
    TORCH_INTERNAL_ASSERT(from->data() == nullptr || is_spyre_memory(from->data_ptr()),
                          "an aliased storage was given foreign memory");
    const auto device = to->device();
    const size_t nbytes = from->nbytes();
    auto memory = from->set_data_ptr(c10::DataPtr());
    if (memory) {
        memory.unsafe_set_device(device);
    } else {
        memory = c10::DataPtr(nullptr, device);
    }
    to->set_data_ptr_noswap(std::move(memory));
    to->set_nbytes(nbytes);
    // Other aliases of this storage, and views among the results, go on with the memory it has now.
    from->set_data_ptr_noswap(std::move(
        alias_storage(pair.device->storage()).unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
}

void Aliases::take_over_layout(const Pair& pair) {
    const auto& from = pair.cpu;
    auto* const to = pair.device->unsafeGetTensorImpl();
    if (C10_UNLIKELY(from.is_nested())) {
        return;  // Nothing resizes one.
    }
    if (C10_UNLIKELY(!from.sizes().equals(to->sizes()) || !from.strides().equals(to->strides()) ||
                     from.storage_offset() != to->storage_offset())) {
        to->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
    }
    // Some linear algebra conjugates its output by flipping the bit.
    if (C10_UNLIKELY(from.is_conj() != to->is_conj())) {
        to->_set_conj(from.is_conj());
    }
    if (C10_UNLIKELY(from.is_neg() != to->is_neg())) {
        to->_set_neg(from.is_neg());
    }
}

}  // namespace spyre
