// Scaled dot-product attention. On an out-of-tree device torch asks which implementation to take, and has a
// slot for a fused one; the CPU's fused kernel fills it, on aliases.
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "alias.h"
#include "argument_devices.h"
#include "device.h"

namespace spyre {
namespace {

// The fused kernel where the CPU would take its own, which has no gradient for the mask; else plain
// operators.
int64_t fused_sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool causal,
                         std::optional<double> scale, bool enable_gqa) {
    const bool mask_has_gradient = mask && mask->defined() && mask->requires_grad();
    if (mask_has_gradient) {
        return static_cast<int64_t>(sdp::SDPBackend::math);
    }
    const auto on_cpu =
        at::_fused_sdp_choice(cpu_alias_if_spyre(query), cpu_alias_if_spyre(key), cpu_alias_if_spyre(value),
                              cpu_alias_if_spyre(mask), dropout, causal, scale, enable_gqa);
    const bool fused = on_cpu == static_cast<int64_t>(sdp::SDPBackend::flash_attention);
    return static_cast<int64_t>(fused ? sdp::SDPBackend::overrideable : sdp::SDPBackend::math);
}

using AttentionResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt,
                                   at::Tensor, at::Tensor, at::Tensor>;

AttentionResult attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::optional<at::Tensor>& bias, double dropout, bool causal, bool,
                          std::optional<double> scale) {
    check_same_device({query, key, value, bias.value_or(at::Tensor())});
    const auto device = query.device().index();
    const BelowAutograd scope;
    const auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        cpu_alias(query), cpu_alias(key), cpu_alias(value), dropout, causal, cpu_alias_if_spyre(bias), scale);
    // The CPU kernel has no dropout and no ragged batches, so the rest of the result says nothing.
    const auto nothing = [&] { return at::empty({0}, query.options().dtype(c10::kLong)); };
    return {copy_to_spyre(output, device),
            copy_to_spyre(logsumexp, device),
            nothing(),
            nothing(),
            query.size(2),
            key.size(2),
            nothing(),
            nothing(),
            nothing()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& grad_output, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, std::array<bool, 4> grad_input_mask, const at::Tensor& output,
    const at::Tensor& logsumexp, const at::Tensor&, const at::Tensor&, int64_t, int64_t, double dropout,
    bool causal, const at::Tensor&, const at::Tensor&, std::optional<double> scale) {
    const auto device = query.device().index();
    const BelowAutograd scope;
    const auto mask = bias.defined() ? std::optional(cpu_alias_if_spyre(bias)) : std::nullopt;
    const auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        cpu_alias(grad_output), cpu_alias(query), cpu_alias(key), cpu_alias(value), cpu_alias(output),
        cpu_alias(logsumexp), dropout, causal, mask, scale);
    const auto wanted = [&](size_t position, const at::Tensor& grad) {
        return grad_input_mask[position] ? copy_to_spyre(grad, device) : at::Tensor();
    };
    return {wanted(0, grad_query), wanted(1, grad_key), wanted(2, grad_value), at::Tensor()};
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
