// Which devices the arguments of an operator are on, and whether they may be mixed.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <initializer_list>
#include <optional>
#include <vector>

namespace spyre {

// The devices of the tensors of one call. A CPU tensor without dimensions mixes with any device, unless the
// call writes it.
class SeenDevices {
  public:
    void see(const at::Tensor& tensor, bool written) {
        if (C10_LIKELY(tensor.defined())) {
            const auto device = tensor.device();
            if (C10_LIKELY(first_ == device && spyre_ == device)) {
                return;
            }
            see_another(device, !written && tensor.dim() == 0);
        }
    }

    // The first device on spyre.
    const std::optional<c10::Device>& spyre() const { return spyre_; }

    // Whether a tensor on another device than spyre was seen and none on spyre.
    bool elsewhere() const { return first_ && !spyre_; }

    bool differ() const { return second_.has_value(); }

    // Throws RuntimeError, worded as CUDA's, if they differ.
    void check() const {
        if (C10_UNLIKELY(differ())) {
            fail();
        }
    }

  private:
    void see_another(c10::Device device, bool scalar);
    [[noreturn]] void fail() const;

    std::optional<c10::Device> first_;
    std::optional<c10::Device> second_;
    std::optional<c10::Device> spyre_;
};

// Looks at the arguments of one call in order. The rules are those of CUDA: all tensors on one device, but a
// CPU tensor without dimensions that is only read mixes with any device, as do indices. The lists of a
// `_foreach_` operator are compared element by element.
class ArgumentDevices {
  public:
    explicit ArgumentDevices(const c10::FunctionSchema& schema);

    void see(const c10::IValue& value, const c10::Argument& argument);

    // Throws RuntimeError, worded as CUDA's, if tensors on different devices were seen.
    void check() const;

    // Where results belong: the device argument if there is one, else the device of the tensors.
    c10::Device result_device() const;

    // The same for the element `position` of a result that is a list.
    c10::Device result_device(size_t position) const;

    bool elsewhere() const { return seen_.elsewhere(); }

  private:
    void see_list(const c10::IValue& list);

    const c10::FunctionSchema& schema_;
    bool elementwise_;
    std::optional<c10::Device> argument_;
    SeenDevices seen_;
    std::vector<c10::Device> list_;  // Of the first list of a `_foreach_` operator.
};

// The same check for kernels with given arguments; undefined tensors are passed over.
void check_same_device(std::initializer_list<at::Tensor> tensors);

}  // namespace spyre
