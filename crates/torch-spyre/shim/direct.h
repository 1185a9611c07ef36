// Operators that need no boxing: one kernel per operator that calls the CPU's with its arguments as they are.
//
// It does what the fallback does, for less: boxing copies every tensor, and where PyTorch's
// count of references goes from one to two it takes the GIL to tell the Python object.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <torch/library.h>

#include <string>
#include <type_traits>

#include "alias.h"
#include "aliases.h"
#include "argument_devices.h"

namespace spyre {

template <class Operator, class Schema>
struct Direct;

// An operator that writes into one of its arguments and returns that: the `.out` variants and those in place.
// `Operator` is one of at::_ops.
template <class Operator, class... Arguments>
struct Direct<Operator, at::Tensor&(Arguments...)> {
    template <class Argument>
    static constexpr bool is_tensor = std::is_same_v<std::remove_cvref_t<Argument>, at::Tensor>;
    template <class Argument>
    static constexpr bool is_written = std::is_same_v<Argument, at::Tensor&>;

    static_assert((... + is_written<Arguments>) == 1, "exactly one argument is written and returned");
    // References to aliases are valid as long as these fit into what Aliases has without allocating.
    static_assert((... + is_tensor<Arguments>) <= Aliases::kInline);

    static at::Tensor& run(Arguments... arguments) {
        SeenDevices devices;
        (see<Arguments>(devices, arguments), ...);
        devices.check();
        Aliases aliases;
        {
            const BelowAutograd scope;
            Operator::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU),
                                 translate<Arguments>(aliases, arguments)...);
        }
        aliases.write_back();
        at::Tensor* written = nullptr;
        (find_written<Arguments>(written, arguments), ...);
        return *written;
    }

  private:
    template <class Argument, class Value>
    static void see(SeenDevices& devices, const Value& argument) {
        static_assert(!std::is_same_v<Value, std::optional<at::Tensor>> &&
                          !std::is_same_v<Value, c10::ArrayRef<at::Tensor>>,
                      "tensors in options and lists are the fallback's");
        if constexpr (is_tensor<Argument>) {
            devices.see(argument, is_written<Argument>);
        }
    }

    template <class Argument, class Value>
    static Argument translate(Aliases& aliases, Value& argument) {
        if constexpr (is_tensor<Argument>) {
            if (C10_LIKELY(argument.is_privateuseone())) {
                return aliases.of(c10::MaybeOwned<at::Tensor>::borrowed(argument), is_written<Argument>);
            }
        }
        return static_cast<Argument>(argument);
    }

    template <class Argument, class Value>
    static void find_written(at::Tensor*& written, Value& argument) {
        if constexpr (is_written<Argument>) {
            written = &argument;
        }
    }
};

// Registers the kernels of operators for the device.
template <class... Operators>
void use_directly(torch::Library& library) {
    const auto use = [&]<class Operator>(std::type_identity<Operator>) {
        const std::string overload = Operator::overload_name;
        const auto name = Operator::name + (overload.empty() ? "" : "." + overload);
        library.impl(name.c_str(), &Direct<Operator, typename Operator::schema>::run);
    };
    (use(std::type_identity<Operators>()), ...);
}

}  // namespace spyre
