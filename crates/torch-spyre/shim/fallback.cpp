// The zero-copy fallback: every operator without a kernel of its own runs as its CPU kernel on aliases of the
// arguments, and results are mapped back.
//
// Structured operators arrive as their `.out` variant with outputs already allocated by our allocator, so the
// common ones copy nothing. A result that a CPU kernel allocates itself is copied into device memory.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <torch/library.h>

#include "alias.h"
#include "allocator.h"
#include "argument_devices.h"
#include "device.h"
#include "generator.h"

namespace spyre {
namespace {

// The aliases made for one call: the same tensor always has the same alias and the same storage the same
// alias storage, so that kernels see which arguments are the same or overlap.
class Aliases {
  public:
    struct Pair {
        at::Tensor device;
        at::Tensor cpu;
        bool writable;
    };

    at::Tensor of(const at::Tensor& tensor, bool writable) {
        const Pair* same_storage = nullptr;
        for (auto& pair : pairs_) {
            if (pair.device.is_same(tensor)) {
                pair.writable |= writable;
                return pair.cpu;
            }
            if (pair.device.unsafeGetTensorImpl()->unsafe_storage().is_alias_of(
                    tensor.unsafeGetTensorImpl()->unsafe_storage())) {
                same_storage = &pair;
            }
        }
        auto storage = same_storage ? same_storage->cpu.storage() : alias_storage(tensor.storage());
        pairs_.push_back({tensor, alias_with_storage(tensor, std::move(storage)), writable});
        return pairs_.back().cpu;
    }

    // What a result that shares an alias's memory stands for: an argument, or a view of one.
    at::Tensor device_tensor_of(const at::Tensor& cpu) const {
        const Pair* base = nullptr;
        for (const auto& pair : pairs_) {
            if (pair.cpu.is_same(cpu)) {
                return pair.device;
            }
            if (pair.cpu.storage().is_alias_of(cpu.storage())) {
                base = &pair;
            }
        }
        TORCH_INTERNAL_ASSERT(base, "a result aliases a tensor that is not an argument");
        return view_like(base->device, cpu);
    }

    // Gives written tensors the memory and the layout that the kernel gave their aliases.
    void write_back() {
        for (auto& pair : pairs_) {
            if (pair.writable) {
                take_over_memory(pair);
                take_over_layout(pair);
            }
        }
    }

  private:
    static void take_over_memory(Pair& pair) {
        auto* const from = pair.cpu.storage().unsafeGetStorageImpl();
        auto* const to = pair.device.storage().unsafeGetStorageImpl();
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
            alias_storage(pair.device.storage()).unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
    }

    static void take_over_layout(const Pair& pair) {
        const auto& from = pair.cpu;
        auto* const to = pair.device.unsafeGetTensorImpl();
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

    c10::SmallVector<Pair, 6> pairs_;
};

// One call of an operator.
class Call {
  public:
    Call(const c10::OperatorHandle& op, torch::jit::Stack* stack)
        : op_(op), schema_(op.schema()), stack_(*stack), devices_(schema_) {}

    void run() {
        TORCH_CHECK_NOT_IMPLEMENTED(op_.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), "'",
                                    schema_.name(),
                                    "' is not available on spyre: PyTorch has no CPU kernel for it");
        const auto arguments = torch::jit::last(stack_, schema_.arguments().size());
        for (size_t i = 0; i < arguments.size(); ++i) {
            devices_.see(arguments[i], schema_.arguments()[i]);
        }
        devices_.check();
        for (size_t i = 0; i < arguments.size(); ++i) {
            translate_argument(const_cast<c10::IValue&>(arguments[i]), schema_.arguments()[i]);
        }
        run_cpu_kernel();
        aliases_.write_back();
        const auto results = torch::jit::last(stack_, schema_.returns().size());
        for (const auto& result : results) {
            translate_result(const_cast<c10::IValue&>(result));
        }
    }

  private:
    void run_cpu_kernel() {
        const BelowAutograd scope;
        op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    }

    at::Tensor alias(const at::Tensor& tensor, const c10::Argument& argument) {
        if (!tensor.defined() || !tensor.is_privateuseone()) {
            return tensor;
        }
        return aliases_.of(tensor, argument.alias_info() != nullptr && argument.alias_info()->isWrite());
    }

    void translate_argument(c10::IValue& value, const c10::Argument& argument) {
        if (value.isTensor()) {
            const auto& tensor = value.toTensor();
            if (tensor.defined() && tensor.is_privateuseone()) {
                value = alias(tensor, argument);
            }
        } else if (value.isTensorList()) {
            c10::List<at::Tensor> translated;
            const auto list = value.toTensorList();
            translated.reserve(list.size());
            for (const at::Tensor& tensor : list) {
                translated.push_back(alias(tensor, argument));
            }
            value = std::move(translated);
        } else if (value.isOptionalTensorList()) {
            c10::List<std::optional<at::Tensor>> translated;
            for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
                translated.push_back(tensor ? std::optional(alias(*tensor, argument)) : std::nullopt);
            }
            value = std::move(translated);
        } else if (value.isDevice()) {
            if (value.toDevice().type() == kSpyre) {
                value = c10::Device(c10::kCPU);
            }
        } else if (value.isGenerator()) {
            // The generator's device also takes part in dispatch: the tensors may be elsewhere.
            TORCH_CHECK(!devices_.elsewhere(),
                        "Expected the generator and the tensors on the same device, but found ",
                        value.toGenerator().device(), " for the generator only");
            value = cpu_generator(value.toGenerator());
        } else if (value.isNone() && argument.name() == "generator") {
            value = cpu_generator(default_generator(devices_.result_device().index()));
        }
    }

    void translate_result(c10::IValue& value) {
        if (value.isTensor()) {
            value = result_on_device(value.toTensor(), devices_.result_device());
        } else if (value.isTensorList()) {
            const auto list = value.toTensorList();
            c10::List<at::Tensor> translated;
            translated.reserve(list.size());
            size_t position = 0;
            for (const at::Tensor& tensor : list) {
                translated.push_back(result_on_device(tensor, devices_.result_device(position++)));
            }
            value = std::move(translated);
        }
    }

    at::Tensor result_on_device(const at::Tensor& cpu, c10::Device device) {
        if (!cpu.defined() || !cpu.is_cpu() || device.type() != kSpyre) {
            return cpu;
        }
        check_representable(cpu, schema_.name().c_str());
        return is_alias_storage(cpu.storage()) ? aliases_.device_tensor_of(cpu)
                                               : copy_to_spyre(cpu, device.index());
    }

    const c10::OperatorHandle& op_;
    const c10::FunctionSchema& schema_;
    torch::jit::Stack& stack_;
    ArgumentDevices devices_;
    Aliases aliases_;
};

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op, stack).run(); }

}  // namespace

// Operators that would not reach the fallback by themselves, although their CPU kernels are the better ones.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    const auto use_fallback = [&](const char* name) {
        m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
    };
    // They compute the size of their result as they go, so their `.out` variant warns that it resizes an
    // output.
    use_fallback("mse_loss");
    use_fallback("smooth_l1_loss");
    // Other devices get formulas of many operators, with other roundings.
    use_fallback("native_layer_norm");
    use_fallback("native_group_norm");
    use_fallback("silu_backward");
    use_fallback("mish_backward");
    use_fallback("addr");
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

// Copying a lazily conjugated or negated tensor resolves it by copying. Without these the copy ends in the
// resolving kernel again, for ever.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace spyre
