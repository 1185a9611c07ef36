// The zero-copy fallback: every operator without a kernel of its own runs as its CPU kernel on aliases of the
// arguments, and results are mapped back.
//
// Structured operators arrive as their `.out` variant with outputs already allocated by our allocator, so the
// common ones copy nothing. A result that a CPU kernel allocates itself is copied into device memory.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <torch/library.h>

#include <vector>

#include "alias.h"
#include "aliases.h"
#include "argument_devices.h"
#include "device.h"
#include "generator.h"

namespace spyre {
namespace {

// One call of an operator.
class Call {
  public:
    Call(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::DispatchKey kernel,
         bool shows_requires_grad)
        : op_(op),
          schema_(op.schema()),
          stack_(*stack),
          kernel_(kernel),
          shows_requires_grad_(shows_requires_grad),
          devices_(schema_) {}

    void run() {
        TORCH_CHECK_NOT_IMPLEMENTED(op_.hasComputedKernelForDispatchKey(kernel_), "'", schema_.name(),
                                    "' is not available on spyre: PyTorch has no kernel for it for the key ",
                                    kernel_, ", whose kernels the device uses");
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
        op_.redispatchBoxed(c10::DispatchKeySet(kernel_), &stack_);
    }

    at::Tensor alias(at::Tensor tensor, const c10::Argument& argument) {
        if (!tensor.defined() || !tensor.is_privateuseone()) {
            return tensor;
        }
        const bool requires_grad = C10_UNLIKELY(shows_requires_grad_) && tensor.requires_grad();
        const bool writable = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
        const auto& alias = aliases_.of(c10::MaybeOwned<at::Tensor>::owned(std::move(tensor)), writable);
        if (C10_UNLIKELY(requires_grad)) {
            alias.set_requires_grad(true);
        }
        return alias;
    }

    void translate_argument(c10::IValue& value, const c10::Argument& argument) {
        if (value.isTensor()) {
            const auto& tensor = value.toTensor();
            if (tensor.defined() && tensor.is_privateuseone()) {
                value = alias(std::move(value).toTensor(), argument);
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
        return aliases_.result(cpu, device.index(), schema_.name().c_str());
    }

    const c10::OperatorHandle& op_;
    const c10::FunctionSchema& schema_;
    torch::jit::Stack& stack_;
    const c10::DispatchKey kernel_;
    const bool shows_requires_grad_;
    ArgumentDevices devices_;
    Aliases aliases_;
};

// Runs the operator's kernel for the key `kernel` on aliases. They require no gradient, which few kernels
// look at: it is costly to show.
template <c10::DispatchKey kernel, bool shows_requires_grad = false>
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    Call(op, stack, kernel, shows_requires_grad).run();
}

template <c10::DispatchKey kernel, bool shows_requires_grad = false>
torch::CppFunction fallback_to() {
    return torch::CppFunction::makeFromBoxedFunction<&fallback<kernel, shows_requires_grad>>();
}

bool is_composite(const c10::OperatorHandle& op) {
    return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
           op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
           op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

// All composite operators of torch.
const std::vector<c10::OperatorHandle>& composite_operators() {
    static const auto operators = [] {
        auto& dispatcher = c10::Dispatcher::singleton();
        std::vector<c10::OperatorHandle> found;
        for (const auto& name : dispatcher.getAllOpNames()) {
            const auto op = dispatcher.findOp(name);
            if (op && is_composite(*op) && name.getNamespace() == "aten") {
                found.push_back(*op);
            }
        }
        return found;
    }();
    return operators;
}

// A composite kernel hides the fallback. Where the CPU has a kernel of its own for `kernel` beside it, the
// fallback has to be named.
template <c10::DispatchKey kernel>
void prefer_fallback(torch::Library& library) {
    for (const auto& op : composite_operators()) {
        if (op.hasKernelForDispatchKey(kernel)) {
            library.impl(toString(op.operator_name()).c_str(), fallback_to<kernel>());
        }
    }
}

}  // namespace

// Operators that would not reach the fallback by themselves, although their CPU kernels are the better ones.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    const auto use_fallback = [&](const char* name) { m.impl(name, fallback_to<c10::DispatchKey::CPU>()); };
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
    // Its checks let tensors on several devices through to an assertion.
    use_fallback("_linalg_solve_ex");
    // They look for a kernel of this device, or at the type of the device.
    use_fallback("conj_physical_");
    use_fallback("mode.values");
    use_fallback("kaiser_window");
    use_fallback("kaiser_window.periodic");
    use_fallback("kaiser_window.beta");
    // Other devices lose the memory format.
    use_fallback("pixel_shuffle");
    use_fallback("pixel_unshuffle");
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(fallback_to<c10::DispatchKey::CPU>()); }

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(fallback_to<c10::DispatchKey::SparseCPU>()); }
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) { m.fallback(fallback_to<c10::DispatchKey::SparseCsrCPU>()); }
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) { m.fallback(fallback_to<c10::DispatchKey::QuantizedCPU>()); }
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
    m.fallback(fallback_to<c10::DispatchKey::NestedTensorCPU>());
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) { prefer_fallback<c10::DispatchKey::SparseCPU>(m); }
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
    prefer_fallback<c10::DispatchKey::SparseCsrCPU>(m);
    // Only if a gradient is required, it makes what its gradient reads.
    m.impl("_sparse_mm_reduce_impl", fallback_to<c10::DispatchKey::SparseCsrCPU, true>());
}
TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) { prefer_fallback<c10::DispatchKey::QuantizedCPU>(m); }
TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
    prefer_fallback<c10::DispatchKey::NestedTensorCPU>(m);
}

// Copying a lazily conjugated or negated tensor resolves it by copying. Without these the copy ends in the
// resolving kernel again, for ever.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace spyre
