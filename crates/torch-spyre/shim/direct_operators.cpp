// The operators that are called most, without boxing.
//
// All write where they are told, so that nothing is copied. The functional variants of PyTorch's structured
// operators end in their `.out` variants.
#include <ATen/Operators.h>

#include "direct.h"

namespace spyre {
namespace {

namespace ops = at::_ops;

void arithmetic(torch::Library& m) {
    use_directly<ops::add_out, ops::add__Tensor, ops::sub_out, ops::sub__Tensor, ops::mul_out,
                 ops::mul__Tensor, ops::div_out, ops::div__Tensor, ops::div_out_mode,
                 ops::pow_Tensor_Scalar_out, ops::pow_Tensor_Tensor_out, ops::pow_Scalar_out,
                 ops::maximum_out, ops::minimum_out, ops::addcmul_out, ops::addcmul_, ops::addcdiv_out,
                 ops::addcdiv_, ops::lerp_Scalar_out, ops::lerp__Scalar, ops::clamp_min_out,
                 ops::clamp_max_out>(m);
}

void comparisons(torch::Library& m) {
    use_directly<ops::eq_Tensor_out, ops::eq_Scalar_out, ops::ne_Tensor_out, ops::ne_Scalar_out,
                 ops::lt_Tensor_out, ops::lt_Scalar_out, ops::le_Tensor_out, ops::le_Scalar_out,
                 ops::gt_Tensor_out, ops::gt_Scalar_out, ops::ge_Tensor_out, ops::ge_Scalar_out>(m);
}

void functions(torch::Library& m) {
    use_directly<ops::neg_out, ops::exp_out, ops::log_out, ops::sqrt_out, ops::sqrt_, ops::rsqrt_out,
                 ops::reciprocal_out, ops::sin_out, ops::cos_out, ops::tanh_out, ops::sigmoid_out,
                 ops::erf_out, ops::gelu_out, ops::silu_out, ops::tanh_backward_grad_input,
                 ops::sigmoid_backward_grad_input, ops::gelu_backward_grad_input,
                 ops::threshold_backward_grad_input, ops::fill__Scalar, ops::zero_>(m);
}

void reductions(torch::Library& m) {
    use_directly<ops::sum_IntList_out, ops::mean_out, ops::amax_out, ops::amin_out, ops::_softmax_out,
                 ops::_log_softmax_out, ops::_softmax_backward_data_out, ops::_log_softmax_backward_data_out>(
        m);
}

void products(torch::Library& m) {
    use_directly<ops::mm_out, ops::bmm_out, ops::addmm_out, ops::baddbmm_out>(m);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    arithmetic(m);
    comparisons(m);
    functions(m);
    reductions(m);
    products(m);
}

}  // namespace spyre
