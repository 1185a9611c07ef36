// The parts of batch normalisation over several processes, which torch.nn.SyncBatchNorm puts together. torch
// has them for CUDA only. Formulas and types are those of ATen/native/cuda/Normalization.cuh: statistics are
// float32 where the input is narrower.
//
// Everything consists of ordinary operators of the device.
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/var_mean.h>
#include <torch/library.h>

#include <vector>

namespace spyre {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool present(const OptionalTensor& tensor) { return tensor && tensor->defined(); }

Tensor widened(const Tensor& values) { return values.to(at::toOpMathType(values.scalar_type())); }

// All dimensions but that of the channels.
std::vector<int64_t> dimensions_to_reduce(const Tensor& input) {
    std::vector<int64_t> dimensions{0};
    for (int64_t dimension = 2; dimension < input.dim(); ++dimension) {
        dimensions.push_back(dimension);
    }
    return dimensions;
}

// One value for each channel, in a shape that broadcasts over `input`.
Tensor over(const Tensor& input, const Tensor& values) {
    std::vector<int64_t> sizes(static_cast<size_t>(input.dim()), 1);
    sizes.at(1) = input.size(1);
    return widened(values).view(sizes);
}

// Mean and reciprocal of the standard deviation of each channel, of this process's part.
std::tuple<Tensor, Tensor> stats(const Tensor& input, double epsilon) {
    const auto [variance, mean] =
        at::var_mean(widened(input), dimensions_to_reduce(input), std::optional<at::Scalar>(0), false);
    return {mean, (variance + epsilon).rsqrt()};
}

void move_towards(const OptionalTensor& running, const Tensor& value, double momentum) {
    if (present(running)) {
        running->mul_(1 - momentum).add_(value.to(running->scalar_type()), momentum);
    }
}

// mean, invstd: [processes, channels]; counts: [processes], the elements of a channel that each has. Returns
// the two of everything and updates the running ones.
std::tuple<Tensor, Tensor> gather_stats_with_counts(const Tensor&, const Tensor& mean, const Tensor& invstd,
                                                    const OptionalTensor& running_mean,
                                                    const OptionalTensor& running_var, double momentum,
                                                    double epsilon, const Tensor& counts) {
    const auto weights = counts.to(mean.scalar_type()).view({-1, 1});
    const auto total = weights.sum();
    const auto mean_of_all = (mean * weights).sum(0) / total;
    const auto variance = invstd.pow(-2) - epsilon;
    const auto squares = (weights * (variance + (mean - mean_of_all).square())).sum(0);
    move_towards(running_mean, mean_of_all, momentum);
    move_towards(running_var, squares / (total - 1), momentum);
    return {mean_of_all, (squares / total + epsilon).rsqrt()};
}

std::tuple<Tensor, Tensor> gather_stats(const Tensor& input, const Tensor& mean, const Tensor& invstd,
                                        const OptionalTensor& running_mean, const OptionalTensor& running_var,
                                        double momentum, double epsilon, int64_t count) {
    const auto counts = at::full({mean.size(0)}, count, mean.options());
    return gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, epsilon,
                                    counts);
}

Tensor elemt(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
             const Tensor& mean, const Tensor& invstd, double) {
    auto result = (widened(input) - over(input, mean)) * over(input, invstd);
    if (present(weight)) {
        result = result * over(input, *weight);
    }
    if (present(bias)) {
        result = result + over(input, *bias);
    }
    return result.to(input.scalar_type());
}

// Sums over this process's part: of the gradient, of the gradient times the distance from the mean, and from
// them the gradients of weight and bias.
std::tuple<Tensor, Tensor, Tensor, Tensor> backward_reduce(const Tensor& grad_out, const Tensor& input,
                                                           const Tensor& mean, const Tensor& invstd,
                                                           const OptionalTensor& weight, bool input_g,
                                                           bool weight_g, bool bias_g) {
    const auto dimensions = dimensions_to_reduce(input);
    const auto grad = widened(grad_out);
    const auto sum_dy = grad.sum(dimensions);
    const auto sum_dy_xmu = (grad * (widened(input) - over(input, mean))).sum(dimensions);
    const auto type = present(weight) ? weight->scalar_type() : input.scalar_type();
    return {input_g ? sum_dy : Tensor(), input_g ? sum_dy_xmu : Tensor(),
            weight_g ? (sum_dy_xmu * invstd).to(type) : Tensor(), bias_g ? sum_dy.to(type) : Tensor()};
}

// The gradient of the input, from the sums over all processes.
Tensor backward_elemt(const Tensor& grad_out, const Tensor& input, const Tensor& mean, const Tensor& invstd,
                      const OptionalTensor& weight, const Tensor& sum_dy, const Tensor& sum_dy_xmu,
                      const Tensor& count) {
    const auto total = count.sum().to(sum_dy.scalar_type());
    const auto slope = invstd.square() * sum_dy_xmu / total;
    const auto centred = widened(grad_out) - over(input, sum_dy / total) -
                         (widened(input) - over(input, mean)) * over(input, slope);
    const auto scale = present(weight) ? invstd * widened(*weight) : invstd;
    return (centred * over(input, scale)).to(input.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("batch_norm_stats", stats);
    m.impl("batch_norm_gather_stats", gather_stats);
    m.impl("batch_norm_gather_stats_with_counts", gather_stats_with_counts);
    m.impl("batch_norm_elemt", elemt);
    m.impl("batch_norm_backward_reduce", backward_reduce);
    m.impl("batch_norm_backward_elemt", backward_elemt);
}

}  // namespace spyre
