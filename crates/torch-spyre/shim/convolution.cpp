// Convolution. On an out-of-tree device torch routes it to a slot of its own, so the fallback never sees it.
// The CPU kernel runs on aliases, and results are contiguous whatever it prefers: torch.compile plans with
// that.
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <torch/library.h>

#include "alias.h"
#include "argument_devices.h"
#include "device.h"

namespace spyre {
namespace {

at::Tensor contiguous_on(const at::Tensor& cpu, c10::DeviceIndex device) {
    return cpu.defined() ? copy_to_spyre(cpu.contiguous(), device) : cpu;
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::IntArrayRef stride,
                       c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                       c10::IntArrayRef output_padding, int64_t groups) {
    check_same_device({input, weight, bias.value_or(at::Tensor())});
    const BelowAutograd scope;
    return contiguous_on(at::convolution(cpu_alias(input), cpu_alias(weight), cpu_alias_if_spyre(bias),
                                         stride, padding, dilation, transposed, output_padding, groups),
                         input.device().index());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> output_mask) {
    check_same_device({grad_output, input, weight});
    const BelowAutograd scope;
    const int64_t bias_size = transposed ? weight.size(1) * groups : weight.size(0);
    const auto [grad_input, grad_weight, grad_bias] = at::convolution_backward(
        cpu_alias(grad_output), cpu_alias(input), cpu_alias(weight), c10::IntArrayRef(bias_size), stride,
        padding, dilation, transposed, output_padding, groups, output_mask);
    const auto device = input.device().index();
    return {contiguous_on(grad_input, device), contiguous_on(grad_weight, device),
            contiguous_on(grad_bias, device)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("convolution_overrideable", convolution);
    m.impl("convolution_backward_overrideable", convolution_backward);
}

}  // namespace spyre
