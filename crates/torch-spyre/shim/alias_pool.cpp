// The idle aliases of a thread. No locks: nothing here is shared.
#include "alias_pool.h"

#include <c10/core/InferenceMode.h>

#include <array>

#include "alias.h"

namespace spyre {
namespace {

// As many as an operator has arguments, also where a finalizer runs another operator in its middle.
constexpr size_t kMostIdle = 8;

// Usable when the pool is gone: programs may call operators from the destructors of a thread's other objects.
thread_local bool pool_is_gone = false;

struct Pool {
    std::array<at::Tensor, kMostIdle> idle;
    size_t count = 0;

    ~Pool() { pool_is_gone = true; }
};

Pool* this_threads_pool() {
    if (C10_UNLIKELY(pool_is_gone)) {
        return nullptr;
    }
    thread_local Pool pool;
    return &pool;
}

// The keys of a plain CPU tensor, made outside of inference mode.
c10::DispatchKeySet plain_keys() {
    static const auto keys = [] {
        const c10::InferenceMode off(false);
        return at::detail::make_tensor<c10::TensorImpl>(c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                        c10::scalarTypeToTypeMeta(c10::kFloat),
                                                        c10::Device(c10::kCPU))
            .key_set();
    }();
    return keys;
}

// Whether nobody else has the alias or its storage, and a kernel left them what they were.
bool is_reusable(const at::Tensor& alias) noexcept {
    auto* const impl = alias.unsafeGetTensorImpl();
    const auto& storage = impl->unsafe_storage();
    return alias.use_count() == 1 && alias.weak_use_count() == 1 && storage.use_count() == 1 &&
           !impl->is_wrapped_number() && impl->key_set() == plain_keys() &&
           impl->autograd_meta() == nullptr && impl->pyobj_slot()->load_pyobj() == nullptr &&
           is_alias_storage(storage);
}

void use_for(const at::Tensor& alias, const at::Tensor& tensor) {
    auto* const impl = alias.unsafeGetTensorImpl();
    redirect_alias_storage(impl->unsafe_storage(), tensor.storage());
    if (C10_UNLIKELY(impl->dtype() != tensor.dtype())) {
        impl->set_storage_and_dtype(c10::Storage(impl->unsafe_storage()), tensor.dtype());
    }
    give_layout(alias, tensor);
}

}  // namespace

at::Tensor pooled_alias(const at::Tensor& tensor) {
    auto* const pool = this_threads_pool();
    if (C10_UNLIKELY(pool == nullptr || pool->count == 0 || !is_plain(tensor))) {
        return cpu_alias(tensor);
    }
    auto alias = std::move(pool->idle[--pool->count]);
    use_for(alias, tensor);
    return alias;
}

void give_back(at::Tensor alias) noexcept {
    if (C10_UNLIKELY(!is_reusable(alias))) {
        return;
    }
    // What this frees may be the last of the device tensor.
    release_alias_storage(alias.unsafeGetTensorImpl()->unsafe_storage());
    auto* const pool = this_threads_pool();
    if (C10_LIKELY(pool != nullptr && pool->count < kMostIdle)) {
        pool->idle[pool->count++] = std::move(alias);
    }
}

}  // namespace spyre
