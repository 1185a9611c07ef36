// Scaled dot-product attention. On an out-of-tree device torch asks which implementation to take, and has a
// slot for a fused one; the CPU's fused kernel fills it, on aliases. Results have the layouts that the slot's
// fake kernel promises, whatever the CPU prefers: torch.compile plans with those.
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_permuted.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>

#include "alias.h"
#include "argument_devices.h"
#include "device.h"

namespace spyre {
namespace {

// The fused kernel where the CPU would take its own, which has no gradient for the mask; else plain
// operators. The CPU's choice looks at shapes only, so it may be asked about the fake tensors that
// torch.compile traces with, which have no memory to make an alias of.
int64_t fused_sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool causal,
                         std::optional<double> scale, bool enable_gqa) {
    const bool mask_has_gradient = mask && mask->defined() && mask->requires_grad();
    // A batch of torch.func.vmap has no memory that could be aliased.
    const bool has_memory = query.has_storage() && key.has_storage() && value.has_storage();
    if (mask_has_gradient || !has_memory) {
        return static_cast<int64_t>(sdp::SDPBackend::math);
    }
    const auto on_cpu =
        at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, causal, scale, enable_gqa);
    const bool fused = on_cpu == static_cast<int64_t>(sdp::SDPBackend::flash_attention);
    return static_cast<int64_t>(fused ? sdp::SDPBackend::overrideable : sdp::SDPBackend::math);
}

// `cpu` in device memory, laid out as `model`, a tensor of the same number of dimensions.
at::Tensor copy_in_layout_of(const at::Tensor& model, const at::Tensor& cpu) {
    auto copy = at::empty_like(model);
    if (!copy.sizes().equals(cpu.sizes())) {  // Other sizes, the same order of dimensions.
        std::vector<int64_t> order(static_cast<size_t>(cpu.dim()));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int64_t one, int64_t other) { return copy.stride(one) > copy.stride(other); });
        copy = at::empty_permuted(cpu.sizes(), order, model.options());
    }
    cpu_alias(copy).copy_(cpu);
    return copy;
}

using AttentionResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt,
                                   at::Tensor, at::Tensor, at::Tensor>;

AttentionResult attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::optional<at::Tensor>& bias, double dropout, bool causal, bool,
                          std::optional<double> scale) {
    check_same_device({query, key, value, bias.value_or(at::Tensor())});
    const BelowAutograd scope;
    const auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        cpu_alias(query), cpu_alias(key), cpu_alias(value), dropout, causal, cpu_alias_if_spyre(bias), scale);
    // The CPU kernel has no dropout and no ragged batches, so the rest of the result says nothing.
    // Two tensors: one must not be two results.
    const auto no_seed = [&] { return at::empty({}, query.options().dtype(c10::kLong)); };
    return {copy_in_layout_of(query, output),
            copy_to_spyre(logsumexp.contiguous(), query.device().index()),
            at::Tensor(),
            at::Tensor(),
            query.size(2),
            key.size(2),
            no_seed(),
            no_seed(),
            at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& grad_output, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, std::array<bool, 4> grad_input_mask, const at::Tensor& output,
    const at::Tensor& logsumexp, const at::Tensor&, const at::Tensor&, int64_t, int64_t, double dropout,
    bool causal, const at::Tensor&, const at::Tensor&, std::optional<double> scale) {
    check_same_device({grad_output, query, key, value, bias, output, logsumexp});
    const BelowAutograd scope;
    const auto mask = bias.defined() ? std::optional(cpu_alias_if_spyre(bias)) : std::nullopt;
    const auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        cpu_alias(grad_output), cpu_alias(query), cpu_alias(key), cpu_alias(value), cpu_alias(output),
        cpu_alias(logsumexp), dropout, causal, mask, scale);
    const auto wanted = [&](size_t position, const at::Tensor& input, const at::Tensor& grad) {
        return grad_input_mask[position] ? copy_in_layout_of(input, grad) : at::Tensor();
    };
    return {wanted(0, query, grad_query), wanted(1, key, grad_key), wanted(2, value, grad_value),
            at::Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("_fused_sdp_choice", fused_sdp_choice);
    m.impl("_scaled_dot_product_fused_attention_overrideable", attention);
    m.impl("_scaled_dot_product_fused_attention_overrideable_backward", attention_backward);
}

}  // namespace spyre

namespace at::native {
// scaled_dot_product_attention asks through this, torch._fused_sdp_choice through the operator.
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &spyre::fused_sdp_choice)
}  // namespace at::native
