// A thin C++17 layer above flex.h: ownership and exceptions, no policy. Header only.
//
// What it adds:
//   - Allocation, Allocator and Callback own their handles and give them up when destroyed.
//   - A status that is not FLEX_OK becomes an exception: Error, or OutOfMemory.
//   - An exception that leaves a pressure callback does not cross the C ABI. It is caught inside, the request
//   fails, and
//     Allocator::allocate throws it again on the same thread. A request that was made with flex_allocate
//     itself returns FLEX_CALLBACK_FAILED, and the exception is dropped.
//   - unlocked(lock, body) releases the mutex around body and takes it again, also when body throws.
//
// Under ThreadSanitizer it announces what the library's own locks order: the library is not instrumented, so
// the sanitizer cannot see that a free comes before the allocation that uses the memory again.
#ifndef FLEX_HPP
#define FLEX_HPP

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "flex.h"

#if defined(__SANITIZE_THREAD__)
#define FLEX_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FLEX_TSAN 1
#endif
#endif
#ifdef FLEX_TSAN
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
#endif

namespace flex {

// A call of the C ABI that failed.
class Error : public std::runtime_error {
  public:
    Error(FlexStatus status, const std::string& text) : std::runtime_error(text), status_(status) {}
    FlexStatus status() const noexcept { return status_; }

  private:
    FlexStatus status_;
};

// FLEX_OUT_OF_MEMORY.
class OutOfMemory : public Error {
  public:
    explicit OutOfMemory(const std::string& text) : Error(FLEX_OUT_OF_MEMORY, text) {}
};

namespace detail {

inline void check(FlexStatus status) {
    if (status == FLEX_OK) return;
    if (status == FLEX_OUT_OF_MEMORY) throw OutOfMemory(flex_last_error());
    throw Error(status, flex_last_error());
}

// What is done before `release(tag)` is seen by whoever does `acquire(tag)` later. No code without
// ThreadSanitizer.
inline void acquire([[maybe_unused]] const void* tag) noexcept {
#ifdef FLEX_TSAN
    __tsan_acquire(const_cast<void*>(tag));
#endif
}
inline void release([[maybe_unused]] const void* tag) noexcept {
#ifdef FLEX_TSAN
    __tsan_release(const_cast<void*>(tag));
#endif
}

// Stands for the mutex of an allocator, to ThreadSanitizer.
inline const void* mutex_tag(FlexAllocator allocator) noexcept {
    static const char tags[64] = {};
    return &tags[allocator.id % sizeof tags];
}

// The exception that left a callback on this thread, kept until the innermost call of this layer throws it
// again.
class Caught {
  public:
    Caught() noexcept : outer_(std::exchange(innermost(), this)) {}
    ~Caught() { innermost() = outer_; }
    Caught(const Caught&) = delete;
    Caught& operator=(const Caught&) = delete;

    void rethrow() {
        if (exception_) std::rethrow_exception(std::exchange(exception_, nullptr));
    }

    // Called in a handler.
    static void keep() noexcept {
        if (innermost() != nullptr) innermost()->exception_ = std::current_exception();
    }

  private:
    static Caught*& innermost() noexcept {
        thread_local Caught* innermost = nullptr;
        return innermost;
    }
    Caught* outer_;
    std::exception_ptr exception_;
};

}  // namespace detail

// Owns an allocation.
class Allocation {
  public:
    Allocation() noexcept = default;
    Allocation(FlexAllocation handle, FlexAllocator allocator) noexcept
        : handle_(handle), allocator_(allocator) {}
    Allocation(Allocation&& other) noexcept : handle_(other.release()), allocator_(other.allocator_) {}
    Allocation& operator=(Allocation&& other) noexcept {
        if (this != &other) {
            reset();
            allocator_ = other.allocator_;
            handle_ = other.release();
        }
        return *this;
    }
    ~Allocation() { reset(); }

    explicit operator bool() const noexcept { return handle_.id != 0; }
    FlexAllocation handle() const noexcept { return handle_; }

    // Gives up ownership.
    FlexAllocation release() noexcept { return std::exchange(handle_, FlexAllocation{0}); }

    // Frees the allocation, if there is one. In a forked child that does nothing.
    void reset() noexcept {
        if (handle_.id == 0) return;
        detail::release(detail::mutex_tag(allocator_));
        flex_free(release());
    }

    FlexAllocationInfo info() const {
        FlexAllocationInfo info;
        detail::check(flex_allocation_info(handle_, &info));
        return info;
    }
    std::uint64_t size_bytes() const { return info().size_bytes; }
    std::uint64_t requested_bytes() const { return info().requested_bytes; }

    std::vector<FlexChunk> chunks() const {
        std::vector<FlexChunk> chunks(info().chunk_count);
        for (std::size_t index = 0; index < chunks.size(); ++index) {
            detail::check(flex_chunk(handle_, index, &chunks[index]));
        }
        return chunks;
    }

    // The host's address of a chunk. Not in a locked callback.
    void* host_address(std::size_t chunk_index = 0) const {
        void* address = nullptr;
        detail::check(flex_host_address(handle_, chunk_index, &address));
        return address;
    }

  private:
    FlexAllocation handle_{0};
    FlexAllocator allocator_{0};
};

// Where an allocation goes and what it is for: bound to domain 0, for tensors, unless it says otherwise.
struct Directive {
    std::vector<std::uint32_t> domains{0};
    FlexPolicy policy = FLEX_BIND;
    FlexMemoryType memory_type = FLEX_TENSOR;
    FlexAllocation near_allocation{0};

    // One chunk in any one of these domains.
    static Directive bind(std::vector<std::uint32_t> domains) { return {std::move(domains), FLEX_BIND}; }
    // One chunk in each of these domains.
    static Directive interleave(std::vector<std::uint32_t> domains) {
        return {std::move(domains), FLEX_INTERLEAVE};
    }
    // In the domains of another allocation, which must be live when this is used.
    static Directive near(const Allocation& other, FlexPolicy policy = FLEX_BIND) {
        return {{}, policy, FLEX_TENSOR, other.handle()};
    }
    // For programs of the device.
    Directive program() const {
        Directive copy = *this;
        copy.memory_type = FLEX_PROGRAM;
        return copy;
    }
};

// A callback that was taken out of an allocator.
class Callback {
  public:
    Callback() noexcept = default;
    explicit Callback(FlexCallback handle) noexcept : handle_(handle) {}
    Callback(Callback&& other) noexcept : handle_(other.release()) {}
    Callback& operator=(Callback&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Callback() {
        if (handle_.id != 0) flex_callback_release(handle_);
    }

    explicit operator bool() const noexcept { return handle_.id != 0; }
    FlexCallback handle() const noexcept { return handle_; }
    FlexCallback release() noexcept { return std::exchange(handle_, FlexCallback{0}); }

  private:
    friend class Allocator;
    FlexCallback handle_{0};
};

// The locked allocator, as a pressure callback is handed it. To act, use unlocked().
class Lock {
  public:
    explicit Lock(FlexLock* lock) noexcept : lock_(lock) {}
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

    FlexLock* get() const noexcept { return lock_; }

    FlexStatistics statistics() const {
        FlexStatistics statistics;
        detail::check(flex_lock_statistics(lock_, &statistics));
        return statistics;
    }
    bool search() const {
        bool served = false;
        detail::check(flex_lock_search(lock_, &served));
        return served;
    }
    void register_request() const { detail::check(flex_lock_register(lock_)); }
    bool frees_in_flight() const {
        bool in_flight = false;
        detail::check(flex_lock_frees_in_flight(lock_, &in_flight));
        return in_flight;
    }
    // Calls a callback that was taken out of an allocator. Throws what it throws.
    FlexVerdict call(const Callback& previous) const {
        FlexVerdict verdict = FLEX_GIVE_UP;
        detail::Caught caught;
        const FlexStatus status = flex_lock_call(lock_, previous.handle(), &verdict);
        caught.rethrow();
        detail::check(status);
        return verdict;
    }

  private:
    FlexLock* lock_;
};

// Releases the mutex, runs body, takes the mutex again. Returns what body returns, throws what it throws.
template <class Body>
auto unlocked(const Lock& lock, Body&& body) -> std::invoke_result_t<Body&> {
    using Result = std::invoke_result_t<Body&>;
    static_assert(!std::is_reference_v<Result>, "return a value or nothing");
    using Kept = std::conditional_t<std::is_void_v<Result>, bool, Result>;
    struct Call {
        std::remove_reference_t<Body>& body;
        std::optional<Kept> result;
        std::exception_ptr exception;

        static void run(void* arg) noexcept {
            Call& call = *static_cast<Call*>(arg);
            try {
                if constexpr (std::is_void_v<Result>) {
                    call.body();
                } else {
                    call.result.emplace(call.body());
                }
            } catch (...) {
                call.exception = std::current_exception();
            }
        }
    };
    Call call{body, std::nullopt, nullptr};
    const FlexStatus status = flex_unlocked(lock.get(), &Call::run, &call);
    if (call.exception) std::rethrow_exception(call.exception);
    detail::check(status);
    if constexpr (!std::is_void_v<Result>) return std::move(*call.result);
}

// May throw. Several threads may be in it at once.
using PressureCallback = std::function<FlexVerdict(Lock&, const FlexPressureRequest&)>;

// Owns a reference to an allocator; copies share it.
class Allocator {
  public:
    // Takes over a reference.
    explicit Allocator(FlexAllocator handle) noexcept : handle_(handle) {}
    Allocator(const Allocator& other) : handle_(other.handle_) {
        if (handle_.id != 0) detail::check(flex_allocator_retain(handle_));
    }
    Allocator(Allocator&& other) noexcept : handle_(std::exchange(other.handle_, FlexAllocator{0})) {}
    Allocator& operator=(Allocator other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Allocator() {
        if (handle_.id != 0) flex_allocator_release(handle_);
    }

    static Allocator uniform(std::uint64_t capacity_bytes, const FlexOptions& options = {}) {
        FlexAllocator handle;
        detail::check(flex_allocator_create_uniform(capacity_bytes, &options, &handle));
        return Allocator(handle);
    }
    static Allocator spyre(std::uint64_t total_bytes, std::uint32_t max_regions = 7,
                           std::uint32_t domain_count = 1, std::uint32_t program_regions = 1,
                           const FlexOptions& options = {}) {
        FlexAllocator handle;
        detail::check(flex_allocator_create_spyre(total_bytes, max_regions, domain_count, program_regions,
                                                  &options, &handle));
        return Allocator(handle);
    }
    // The device `spyre:<index>` of this Python process.
    static Allocator device(std::int32_t index) {
        FlexAllocator handle;
        detail::check(flex_device_allocator(index, &handle));
        return Allocator(handle);
    }

    FlexAllocator handle() const noexcept { return handle_; }

    // Throws OutOfMemory, Error, or what a pressure callback throws.
    Allocation allocate(std::uint64_t bytes, const Directive& directive = {}) const {
        const FlexDirective plain{directive.policy, directive.memory_type, directive.domains.data(),
                                  directive.domains.size(), directive.near_allocation};
        FlexAllocation allocation{0};
        detail::Caught caught;
        const FlexStatus status = flex_allocate(handle_, bytes, &plain, &allocation);
        caught.rethrow();
        detail::check(status);
        detail::acquire(detail::mutex_tag(handle_));
        return Allocation(allocation, handle_);
    }

    // Makes `callback` the pressure callback, or takes it away if it is empty. Returns the previous one.
    Callback set_pressure_callback(PressureCallback callback) const {
        Callback previous;
        set_pressure_callback(std::move(callback), previous);
        return previous;
    }

    // The same for a callback that calls the previous one: that is in `previous`, which must be empty, before
    // the new one can be called.
    void set_pressure_callback(PressureCallback callback, Callback& previous) const {
        if (!callback) {
            detail::check(flex_set_pressure_callback(handle_, nullptr, nullptr, nullptr, &previous.handle_));
            return;
        }
        auto kept = std::make_unique<PressureCallback>(std::move(callback));
        detail::release(kept.get());
        detail::check(flex_set_pressure_callback(handle_, &call, kept.get(), &destroy, &previous.handle_));
        kept.release();
    }

    // Puts a callback back. Returns the one before it.
    Callback restore_pressure_callback(Callback callback) const {
        FlexCallback previous{0};
        detail::check(flex_restore_pressure_callback(handle_, callback.handle(), &previous));
        callback.release();
        return Callback(previous);
    }

    FlexStatistics statistics() const {
        FlexStatistics statistics;
        detail::check(flex_statistics(handle_, &statistics));
        return statistics;
    }
    FlexPressureStatistics pressure_statistics() const {
        FlexPressureStatistics statistics;
        detail::check(flex_pressure_statistics(handle_, &statistics));
        return statistics;
    }
    std::uint64_t empty_cache() const {
        std::uint64_t returned_bytes = 0;
        detail::check(flex_empty_cache(handle_, &returned_bytes));
        return returned_bytes;
    }
    void validate() const { detail::check(flex_validate(handle_)); }

  private:
    static FlexVerdict call(FlexLock* lock, const FlexPressureRequest* request, void* arg) noexcept {
        detail::acquire(arg);
        FlexVerdict verdict = FLEX_FAIL;
        try {
            Lock wrapped(lock);
            verdict = (*static_cast<PressureCallback*>(arg))(wrapped, *request);
        } catch (...) {
            detail::Caught::keep();
        }
        detail::release(arg);
        return verdict;
    }
    static void destroy(void* arg) noexcept {
        detail::acquire(arg);
        delete static_cast<PressureCallback*>(arg);
    }

    FlexAllocator handle_;
};

}  // namespace flex

#endif  // FLEX_HPP
