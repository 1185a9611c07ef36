// Rejecting operators whose tensors are on different devices.
//
// The CPU kernels behind the fallback would compute silently with such arguments, since all memory is host
// memory.
#include "argument_devices.h"

#include <string_view>

#include "device.h"

namespace spyre {
namespace {

// Copying a sparse tensor, as copies of dense ones have a kernel of their own, and one element to all.
bool moves_between_devices(std::string_view name) {
    return name == "aten::copy_" || name == "aten::copy_sparse_to_sparse_" || name == "aten::fill_";
}

// Operators that take lengths on the CPU next to data on any device.
bool is_cpu_lengths(std::string_view name, std::string_view argument) {
    return argument.find("lengths") != std::string_view::npos &&
           (name == "aten::_pack_padded_sequence" || name == "aten::_ctc_loss" || name == "aten::ctc_loss");
}

[[noreturn]] void fail(c10::Device first, c10::Device second) {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
                first, " and ", second, "!");
}

bool mixes_with_any_device(const at::Tensor& tensor) {
    return !tensor.defined() || (tensor.is_cpu() && tensor.dim() == 0);
}

}  // namespace

void SeenDevices::see_another(c10::Device device, bool scalar) {
    if (device.is_cpu() && scalar) {
        return;
    }
    if (!spyre_ && device.type() == kSpyre) {
        spyre_ = device;
    }
    if (!first_) {
        first_ = device;
    } else if (!second_ && *first_ != device) {
        second_ = device;
    }
}

void SeenDevices::fail() const { spyre::fail(*first_, *second_); }

ArgumentDevices::ArgumentDevices(const c10::FunctionSchema& schema)
    : schema_(schema), elementwise_(std::string_view(schema.name()).starts_with("aten::_foreach_")) {}

void ArgumentDevices::see(const c10::IValue& value, const c10::Argument& argument) {
    if (value.isTensor()) {
        const auto& tensor = value.toTensor();
        if (!tensor.is_cpu() || !is_cpu_lengths(schema_.name(), argument.name())) {
            seen_.see(tensor, argument.alias_info() != nullptr && argument.alias_info()->isWrite());
        }
    } else if (value.isTensorList()) {
        see_list(value);
    } else if (value.isOptionalTensorList()) {
        // Indices may be on the CPU whatever they index, but not on a device when they index a CPU tensor.
        for (const std::optional<at::Tensor>& index : value.toOptionalTensorList()) {
            if (index && !index->is_cpu()) {
                seen_.see(*index, false);
            }
        }
    } else if (value.isDevice()) {
        argument_ = value.toDevice();
        if (argument_->type() == kSpyre) {
            argument_ = resolve_device(*argument_);
        }
    }
}

void ArgumentDevices::see_list(const c10::IValue& list) {
    const bool first_list = elementwise_ && list_.empty();
    size_t position = 0;
    for (const at::Tensor& tensor : list.toTensorList()) {
        if (!elementwise_) {
            seen_.see(tensor, false);
            continue;
        }
        const auto device = tensor.device();
        if (first_list) {
            list_.push_back(device);
        } else if (position < list_.size() && list_[position] != device && !mixes_with_any_device(tensor)) {
            fail(list_[position], device);
        }
        ++position;
    }
}

void ArgumentDevices::check() const {
    if (C10_UNLIKELY(seen_.differ()) && !moves_between_devices(schema_.name())) {
        seen_.check();
    }
}

void check_same_device(std::initializer_list<at::Tensor> tensors) {
    std::optional<c10::Device> first;
    for (const auto& tensor : tensors) {
        if (!tensor.defined()) {
            continue;
        }
        if (!first) {
            first = tensor.device();
        } else if (tensor.device() != *first) {
            fail(*first, tensor.device());
        }
    }
}

c10::Device ArgumentDevices::result_device() const {
    if (argument_) {
        return *argument_;
    }
    return seen_.spyre() ? *seen_.spyre() : c10::Device(kSpyre, current_device());
}

c10::Device ArgumentDevices::result_device(size_t position) const {
    return position < list_.size() ? list_[position] : result_device();
}

}  // namespace spyre
