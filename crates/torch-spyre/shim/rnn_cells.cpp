// The fused LSTM and GRU cells. torch.nn's recurrent modules use them on every accelerator, and torch has
// them for CUDA only. Gate order, workspace layout and formulas are those of ATen/native/cuda/RNN.cu.
//
// Everything is computed on CPU aliases; results are then copied into device memory.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "alias.h"
#include "argument_devices.h"

namespace spyre {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool present(const OptionalTensor& tensor) { return tensor && tensor->defined(); }

// [batch, gates * hidden] with the biases, if there are any, added.
Tensor biased(const Tensor& gates, const OptionalTensor& bias) {
    return present(bias) ? cpu_alias(gates) + cpu_alias(*bias) : cpu_alias(gates);
}

Tensor sum_over_batch(const Tensor& grad_gates, bool has_bias) {
    return has_bias ? grad_gates.sum(0) : Tensor();
}

// input_gates, hidden_gates: [batch, 4 * hidden] in the order input, forget, cell, output; cx: [batch,
// hidden]. Returns hy, cy and the activated gates.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const OptionalTensor& input_bias,
                                             const OptionalTensor& hidden_bias) {
    check_same_device(
        {input_gates, hidden_gates, cx, input_bias.value_or(Tensor()), hidden_bias.value_or(Tensor())});
    const BelowAutograd scope;
    const auto device = cx.device().index();
    const auto gates = (biased(input_gates, input_bias) + biased(hidden_gates, hidden_bias)).chunk(4, 1);
    const auto input = at::sigmoid(gates[0]);
    const auto forget = at::sigmoid(gates[1]);
    const auto cell = at::tanh(gates[2]);
    const auto output = at::sigmoid(gates[3]);
    const auto cy = forget * cpu_alias(cx) + input * cell;
    const auto hy = output * at::tanh(cy);
    const auto workspace = at::cat({input, forget, cell, output}, 1);
    return {copy_to_spyre(hy, device), copy_to_spyre(cy, device), copy_to_spyre(workspace, device)};
}

// Returns the gradients of the gates, of cx and of a bias.
std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy,
                                                      const OptionalTensor& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
    if (!present(grad_hy) && !present(grad_cy)) {
        return {};
    }
    check_same_device({grad_hy.value_or(Tensor()), grad_cy.value_or(Tensor()), cx, cy, workspace});
    const BelowAutograd scope;
    const auto device = cx.device().index();
    const auto gates = cpu_alias(workspace).chunk(4, 1);
    const auto &input = gates[0], &forget = gates[1], &cell = gates[2], &output = gates[3];
    const auto tanh_cy = at::tanh(cpu_alias(cy));
    const auto from_hy = present(grad_hy) ? cpu_alias(*grad_hy) : at::zeros_like(tanh_cy);
    auto grad_cell_state = from_hy * output * (1 - tanh_cy * tanh_cy);
    if (present(grad_cy)) {
        grad_cell_state = grad_cell_state + cpu_alias(*grad_cy);
    }
    const auto grad_gates =
        at::cat({grad_cell_state * cell * (1 - input) * input,
                 grad_cell_state * cpu_alias(cx) * (1 - forget) * forget,
                 grad_cell_state * input * (1 - cell * cell), from_hy * tanh_cy * (1 - output) * output},
                1);
    return {copy_to_spyre(grad_gates, device), copy_to_spyre(grad_cell_state * forget, device),
            copy_to_spyre(sum_over_batch(grad_gates, has_bias), device)};
}

// input_gates, hidden_gates: [batch, 3 * hidden] in the order reset, input, new; hx: [batch, hidden].
// Returns hy and a workspace of reset, input and new gate, hx, and the hidden part of the new gate.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
    check_same_device(
        {input_gates, hidden_gates, hx, input_bias.value_or(Tensor()), hidden_bias.value_or(Tensor())});
    const BelowAutograd scope;
    const auto device = hx.device().index();
    const auto from_input = biased(input_gates, input_bias).chunk(3, 1);
    const auto from_hidden = biased(hidden_gates, hidden_bias).chunk(3, 1);
    const auto state = cpu_alias(hx);
    const auto reset = at::sigmoid(from_input[0] + from_hidden[0]);
    const auto input = at::sigmoid(from_input[1] + from_hidden[1]);
    const auto fresh = at::tanh(from_input[2] + reset * from_hidden[2]);
    const auto hy = fresh + input * (state - fresh);
    const auto workspace = at::cat({reset, input, fresh, state, from_hidden[2]}, 1);
    return {copy_to_spyre(hy, device), copy_to_spyre(workspace, device)};
}

// Returns the gradients of input gates, hidden gates, hx, input bias and hidden bias.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace, bool has_bias) {
    check_same_device({grad_hy, workspace});
    const BelowAutograd scope;
    const auto device = grad_hy.device().index();
    const auto saved = cpu_alias(workspace).chunk(5, 1);
    const auto &reset = saved[0], &input = saved[1], &fresh = saved[2], &state = saved[3],
               &hidden_part = saved[4];
    const auto grad = cpu_alias(grad_hy);
    const auto grad_input = grad * (state - fresh) * (1 - input) * input;
    const auto grad_fresh = grad * (1 - input) * (1 - fresh * fresh);
    const auto grad_reset = grad_fresh * hidden_part * (1 - reset) * reset;
    const auto grad_input_gates = at::cat({grad_reset, grad_input, grad_fresh}, 1);
    const auto grad_hidden_gates = at::cat({grad_reset, grad_input, grad_fresh * reset}, 1);
    return {copy_to_spyre(grad_input_gates, device), copy_to_spyre(grad_hidden_gates, device),
            copy_to_spyre(grad * input, device),
            copy_to_spyre(sum_over_batch(grad_input_gates, has_bias), device),
            copy_to_spyre(sum_over_batch(grad_hidden_gates, has_bias), device)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("_thnn_fused_lstm_cell", lstm_cell);
    m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
    m.impl("_thnn_fused_gru_cell", gru_cell);
    m.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace spyre
