// The aliases made for one call of an operator, and what its results stand for.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/MaybeOwned.h>
#include <c10/util/SmallVector.h>

#include <vector>

namespace spyre {

// The same tensor always has the same alias and the same storage the same alias storage, so that kernels see
// which arguments are the same or overlap. The alias of a sparse tensor consists of the aliases of its parts.
class Aliases {
  public:
    // As many tensors as need no memory of their own.
    static constexpr size_t kInline = 6;

    Aliases() = default;
    Aliases(const Aliases&) = delete;
    Aliases& operator=(const Aliases&) = delete;
    ~Aliases();

    // The alias of a spyre tensor; a borrowed one has to live as long as this. (To copy a tensor may take the
    // GIL: PyTorch tells the Python object when the first reference beside its own appears.) What a kernel
    // does to the alias of a `writable` one, write_back() does to it. The reference is valid until this was
    // called for more than `kInline` tensors.
    at::Tensor& of(c10::MaybeOwned<at::Tensor> tensor, bool writable);

    // Gives written tensors the memory and the layout that the kernel gave their aliases.
    void write_back();

    // What a CPU result stands for: an argument, a view of one, or a copy in the memory of `device`. Throws
    // NotImplementedError, naming `operation`, if there is no such spyre tensor.
    at::Tensor result(const at::Tensor& cpu, c10::DeviceIndex device, const char* operation);

  private:
    struct Pair {
        c10::MaybeOwned<at::Tensor> device;
        at::Tensor cpu;
        bool writable;
    };

    at::Tensor& of_sparse(c10::MaybeOwned<at::Tensor> tensor, bool writable);
    at::Tensor sparse_result(const at::Tensor& cpu, c10::DeviceIndex device, const char* operation);
    at::Tensor argument_or_view(const at::Tensor& cpu, c10::DeviceIndex device) const;
    static void take_over_memory(Pair& pair);
    static void take_over_layout(const Pair& pair);

    c10::SmallVector<Pair, kInline> pairs_;
    std::vector<Pair> sparse_;
};

}  // namespace spyre
