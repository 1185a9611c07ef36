// What a collective on spyre tensors returns: the work of another backend on their aliases.
//
// Dense results are in the spyre tensors' memory as soon as the other backend has written them. A sparse
// tensor gets other indices and values, so its result is copied when the work is done, before anyone hears of
// that.
#pragma once

#include <algorithm>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "alias.h"
#include "sparse.h"

namespace spyre {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// The aliases made for one collective, and the way back from results.
class CollectiveAliases {
  public:
    at::Tensor of(const at::Tensor& tensor) {
        if (!tensor.defined() || !tensor.is_privateuseone()) {
            return tensor;
        }
        pairs_.emplace_back(is_sparse(tensor) ? sparse_alias(tensor) : cpu_alias(tensor), tensor);
        return pairs_.back().first;
    }

    Tensors of(const Tensors& tensors) {
        Tensors aliases;
        aliases.reserve(tensors.size());
        for (const auto& tensor : tensors) {
            aliases.push_back(of(tensor));
        }
        return aliases;
    }

    TensorLists of(const TensorLists& lists) {
        TensorLists aliases;
        aliases.reserve(lists.size());
        for (const auto& list : lists) {
            aliases.push_back(of(list));
        }
        return aliases;
    }

    // The same in one dimension, if `tensor` is contiguous. Collectives of whole tensors are about memory,
    // but gloo asks for shapes; torch gives other backends those that NCCL takes.
    at::Tensor flat_of(const at::Tensor& tensor) {
        if (!tensor.defined() || !tensor.is_privateuseone() || !tensor.is_contiguous()) {
            return of(tensor);
        }
        pairs_.emplace_back(cpu_alias(tensor).view({-1}), tensor);
        return pairs_.back().first;
    }

    Tensors flat_of(const Tensors& tensors) {
        Tensors aliases;
        aliases.reserve(tensors.size());
        for (const auto& tensor : tensors) {
            aliases.push_back(flat_of(tensor));
        }
        return aliases;
    }

    bool empty() const { return pairs_.empty(); }

    bool any_sparse() const {
        return std::any_of(pairs_.begin(), pairs_.end(),
                           [](const auto& pair) { return is_sparse(pair.second); });
    }

    // Gives sparse tensors copies of what the collective gave their aliases.
    void write_back() const {
        for (const auto& [alias, tensor] : pairs_) {
            if (is_sparse(tensor)) {
                auto parts = parts_of(alias);
                for (auto& part : parts) {
                    part = copy_to_spyre(part, tensor.device().index());
                }
                change_sparse(tensor, alias, parts);
            }
        }
    }

    at::Tensor device_tensor(const at::Tensor& result) const {
        for (const auto& [alias, tensor] : pairs_) {
            if (alias.is_same(result)) {
                return tensor;
            }
        }
        return result;
    }

    // A tensor, or lists of them.
    c10::IValue device_value(const c10::IValue& value) const {
        if (value.isTensor()) {
            return device_tensor(value.toTensor());
        }
        if (value.isTensorList()) {
            Tensors tensors = value.toTensorVector();
            for (auto& tensor : tensors) {
                tensor = device_tensor(tensor);
            }
            return tensors;
        }
        if (value.isList()) {
            TensorLists lists;
            for (const c10::IValue& each : value.toListRef()) {
                lists.push_back(device_value(each).toTensorVector());
            }
            return lists;
        }
        return value;
    }

  private:
    static at::Tensor sparse_alias(const at::Tensor& tensor) {
        auto parts = parts_of(tensor);
        for (auto& part : parts) {
            part = cpu_alias(part);
        }
        return sparse_like(tensor, parts);
    }

    std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

// Work of the other backend on aliases.
class AliasWork final : public c10d::Work {
  public:
    AliasWork(WorkPtr work, CollectiveAliases aliases)
        : c10d::Work(-1, work->retrieveOpType()), work_(std::move(work)), aliases_(std::move(aliases)) {
        if (C10_UNLIKELY(aliases_.any_sparse())) {
            written_back_ = translated_future();
        }
    }

    bool isCompleted() override {
        return work_->isCompleted() && (!written_back_ || written_back_->completed());
    }
    bool isSuccess() const override {
        return work_->isSuccess() && (!written_back_ || !written_back_->hasError());
    }
    std::exception_ptr exception() const override {
        return written_back_ && written_back_->hasError() ? written_back_->exception_ptr()
                                                          : work_->exception();
    }
    int sourceRank() const override { return work_->sourceRank(); }
    void abort() override { work_->abort(); }
    float getDuration() const override { return work_->getDuration(); }
    uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }
    c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return work_->getFutureResult(); }

    void synchronize() override {
        work_->synchronize();
        check_written_back();
    }

    bool wait(std::chrono::milliseconds timeout) override {
        const bool done = work_->wait(timeout);
        check_written_back();
        return done;
    }

    // The work is done on the host, and so is complete for every stream when it is complete.
    void blockCurrentStream() override { wait(kNoTimeout); }

    Tensors result() override {
        Tensors tensors = work_->result();
        for (auto& tensor : tensors) {
            tensor = aliases_.device_tensor(tensor);
        }
        return tensors;
    }

    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
        return written_back_ ? written_back_ : translated_future();
    }

  private:
    c10::intrusive_ptr<c10::ivalue::Future> translated_future() const {
        const auto future = work_->getFuture();
        // value() throws what the collective threw, which makes it the error of the new future.
        return future->then(
            [aliases = aliases_](c10::ivalue::Future& done) {
                auto value = aliases.device_value(done.value());
                aliases.write_back();
                return value;
            },
            future->elementType());
    }

    // Throws what kept a sparse result from being copied, such as a full device. The copy was made on the
    // thread that finished the work, before the work was called done.
    void check_written_back() const {
        if (C10_UNLIKELY(written_back_ != nullptr)) {
            written_back_->waitAndThrow();
        }
    }

    const WorkPtr work_;
    const CollectiveAliases aliases_;
    c10::intrusive_ptr<c10::ivalue::Future> written_back_;  // Only if a tensor is sparse.
};

// The works of a coalesced block: done when all are.
class CoalescedWork final : public c10d::Work {
  public:
    explicit CoalescedWork(std::vector<WorkPtr> works)
        : c10d::Work(-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

    bool isCompleted() override {
        return std::all_of(works_.begin(), works_.end(),
                           [](const auto& work) { return work->isCompleted(); });
    }

    bool isSuccess() const override {
        return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isSuccess(); });
    }

    std::exception_ptr exception() const override {
        for (const auto& work : works_) {
            if (auto error = work->exception()) {
                return error;
            }
        }
        return nullptr;
    }

    void synchronize() override {
        for (const auto& work : works_) {
            work->synchronize();
        }
    }

    bool wait(std::chrono::milliseconds timeout) override {
        bool done = true;
        for (const auto& work : works_) {
            done = work->wait(timeout) && done;
        }
        return done;
    }

    void abort() override {
        for (const auto& work : works_) {
            work->abort();
        }
    }

    Tensors result() override {
        Tensors tensors;
        for (const auto& work : works_) {
            const auto results = work->result();
            tensors.insert(tensors.end(), results.begin(), results.end());
        }
        return tensors;
    }

  private:
    const std::vector<WorkPtr> works_;
};

}  // namespace spyre
