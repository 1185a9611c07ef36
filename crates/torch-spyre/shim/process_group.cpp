// Collectives on spyre tensors: a c10d backend that gives another one, gloo's, CPU tensors over the same
// bytes.
//
// In C++ and not a Python subclass because DDP's reducer calls from autograd's threads, where Python would be
// one more lock to wait for, and because PyTorch before 2.15 has no backends in Python. Nothing is copied.
// The aliases keep the memory alive until the work is done; results and futures name the spyre tensors.
#include <torch/library.h>

#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "collective_work.h"
#include "device.h"

namespace spyre {
namespace {

using c10d::Backend;

// Every method does what its name says, on aliases. PyTorch 2.15 has new names for some, and calls these ones
// through them.
class AliasBackend final : public Backend {
  public:
    explicit AliasBackend(c10::intrusive_ptr<Backend> backend)
        : Backend(backend->getRank(), backend->getSize()), backend_(std::move(backend)) {}

    const std::string getBackendName() const override { return "spyre"; }
    c10::intrusive_ptr<Options> getBackendOptions() override { return backend_->getBackendOptions(); }
    void setTimeout(std::chrono::milliseconds timeout) override { backend_->setTimeout(timeout); }
    c10d::ErrorType getError() override { return backend_->getError(); }
    void abort() override { backend_->abort(); }
    void shutdown() override { backend_->shutdown(); }
    void setSequenceNumberForGroup() override { backend_->setSequenceNumberForGroup(); }
    uint64_t getSequenceNumberForGroup() override { return backend_->getSequenceNumberForGroup(); }
    void enableCollectivesTiming() override { backend_->enableCollectivesTiming(); }

    void setGroupUid(const std::string& uid) override {
        Backend::setGroupUid(uid);
        backend_->setGroupUid(uid);
    }

    bool supportsSplitting() const override { return backend_->supportsSplitting(); }

    c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                      const std::vector<int>& ranks,
                                      const c10::intrusive_ptr<Options>& options) override {
        return wrapped(backend_->split(store, ranks, options));
    }

    c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                      const c10::intrusive_ptr<Options>& options, const int& rank,
                                      const int& size) override {
        return wrapped(backend_->merge(store, options, rank, size));
    }

    WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
        return with_aliases(tensors, [&](auto& on_cpu) { return backend_->broadcast(on_cpu, options); });
    }

    WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
        return with_aliases(tensors, [&](auto& on_cpu) { return backend_->allreduce(on_cpu, options); });
    }

    WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
        return with_aliases(tensors,
                            [&](auto& on_cpu) { return backend_->allreduce_coalesced(on_cpu, options); });
    }

    WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
        return with_aliases(tensors,
                            [&](auto& on_cpu) { return backend_->allreduce_sparse(on_cpu, options); });
    }

    WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
        return with_aliases(tensors, [&](auto& on_cpu) { return backend_->reduce(on_cpu, options); });
    }

    WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
        return with_aliases(outputs, inputs,
                            [&](auto& to, auto& from) { return backend_->allgather(to, from, options); });
    }

    WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                            const c10d::AllgatherOptions& options) override {
        return with_flat_aliases(output, input, [&](auto& to, auto& from) {
            return backend_->_allgather_base(to, from, options);
        });
    }

    WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                const c10d::AllgatherOptions& options) override {
        return with_aliases(outputs, inputs, [&](auto& to, auto& from) {
            return backend_->allgather_coalesced(to, from, options);
        });
    }

    WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& options) override {
        return with_flat_aliases(outputs, inputs, [&](auto& to, auto& from) {
            return backend_->allgather_into_tensor_coalesced(to, from, options);
        });
    }

    WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
        return with_aliases(outputs, inputs,
                            [&](auto& to, auto& from) { return backend_->gather(to, from, options); });
    }

    WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override {
        return with_aliases(outputs, inputs,
                            [&](auto& to, auto& from) { return backend_->scatter(to, from, options); });
    }

    WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                           const c10d::ReduceScatterOptions& options) override {
        return with_aliases(outputs, inputs, [&](auto& to, auto& from) {
            return backend_->reduce_scatter(to, from, options);
        });
    }

    WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                 const c10d::ReduceScatterOptions& options) override {
        return with_flat_aliases(output, input, [&](auto& to, auto& from) {
            return backend_->_reduce_scatter_base(to, from, options);
        });
    }

    WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                            const c10d::ReduceScatterOptions& options) override {
        return with_flat_aliases(outputs, inputs, [&](auto& to, auto& from) {
            return backend_->reduce_scatter_tensor_coalesced(to, from, options);
        });
    }

    WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                          std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override {
        return with_aliases(output, input, [&](auto& to, auto& from) {
            return backend_->alltoall_base(to, from, output_sizes, input_sizes, options);
        });
    }

    WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
        return with_aliases(outputs, inputs,
                            [&](auto& to, auto& from) { return backend_->alltoall(to, from, options); });
    }

    WorkPtr send(Tensors& tensors, int rank, int tag) override {
        return with_aliases(tensors, [&](auto& on_cpu) { return backend_->send(on_cpu, rank, tag); });
    }

    WorkPtr recv(Tensors& tensors, int rank, int tag) override {
        return with_aliases(tensors, [&](auto& on_cpu) { return backend_->recv(on_cpu, rank, tag); });
    }

    WorkPtr recvAnysource(Tensors& tensors, int tag) override {
        return with_aliases(tensors, [&](auto& on_cpu) { return backend_->recvAnysource(on_cpu, tag); });
    }

    // Between these two calls work is also collected. It starts at once, as always.
    bool supportsCoalescing() const override { return true; }

    void startCoalescing() override {
        const std::scoped_lock lock(coalescing_);
        coalesced_.emplace();
    }

    WorkPtr endCoalescing() override {
        const std::scoped_lock lock(coalescing_);
        TORCH_CHECK(coalesced_, "endCoalescing() without startCoalescing()");
        auto works = std::move(*coalesced_);
        coalesced_.reset();
        return c10::make_intrusive<CoalescedWork>(std::move(works));
    }

    WorkPtr barrier(const c10d::BarrierOptions& options) override { return backend_->barrier(options); }

    void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override {
        backend_->monitoredBarrier(options, wait_all_ranks);
    }

  private:
    static c10::intrusive_ptr<Backend> wrapped(c10::intrusive_ptr<Backend> backend) {
        return backend ? c10::make_intrusive<AliasBackend>(std::move(backend)) : nullptr;
    }

    WorkPtr work(WorkPtr work, CollectiveAliases aliases) {
        if (work && !aliases.empty()) {
            work = c10::make_intrusive<AliasWork>(std::move(work), std::move(aliases));
        }
        const std::scoped_lock lock(coalescing_);
        if (work && coalesced_) {
            coalesced_->push_back(work);
        }
        return work;
    }

    template <typename Arguments, typename Collective>
    WorkPtr with_aliases(const Arguments& arguments, const Collective& collective) {
        CollectiveAliases aliases;
        auto on_cpu = aliases.of(arguments);
        return work(collective(on_cpu), std::move(aliases));
    }

    template <typename Outputs, typename Inputs, typename Collective>
    WorkPtr with_aliases(const Outputs& outputs, const Inputs& inputs, const Collective& collective) {
        CollectiveAliases aliases;
        auto to = aliases.of(outputs);
        auto from = aliases.of(inputs);
        return work(collective(to, from), std::move(aliases));
    }

    template <typename Outputs, typename Inputs, typename Collective>
    WorkPtr with_flat_aliases(const Outputs& outputs, const Inputs& inputs, const Collective& collective) {
        CollectiveAliases aliases;
        auto to = aliases.flat_of(outputs);
        auto from = aliases.flat_of(inputs);
        return work(collective(to, from), std::move(aliases));
    }

    const c10::intrusive_ptr<Backend> backend_;
    std::mutex coalescing_;  // Held for a moment, while nothing else is called.
    std::optional<std::vector<WorkPtr>> coalesced_;
};

// Gives a process group that has a backend for CPU tensors one for spyre tensors too.
void add_backend(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    group->setBackend(kSpyre, c10d::ProcessGroup::BackendType::CUSTOM,
                      c10::make_intrusive<AliasBackend>(group->getBackend(c10::kCPU)));
}

void as_dense(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
}

}  // namespace

// The fallback for sparse tensors would take back what a collective does to its aliases when it begins and
// not when it is done. PyTorch's kernel for dense tensors of the device asks the backend, which takes both.
TORCH_LIBRARY_IMPL(c10d, SparsePrivateUse1, m) {
    m.impl("allreduce_", torch::CppFunction::makeFromBoxedFunction<&as_dense>());
}

TORCH_LIBRARY_FRAGMENT(spyre, m) {
    m.def("add_distributed_backend(__torch__.torch.classes.c10d.ProcessGroup group) -> ()", add_backend);
}

}  // namespace spyre
