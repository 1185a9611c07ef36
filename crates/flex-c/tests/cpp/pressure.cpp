// Pressure callbacks: what they may do locked and unlocked, from many threads, replaced while they run,
// throwing. Interleavings are forced with events.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "check.hpp"
#include "flex.hpp"

using flex::Allocation;
using flex::Allocator;
using flex::Directive;
using flex::Lock;
using flex::unlocked;

static constexpr std::uint64_t BLOCK = 4096;

// Something that happens once, and can be waited for.
class Event {
  public:
    void set() {
        std::lock_guard<std::mutex> lock(mutex_);
        happened_ = true;
        changed_.notify_all();
    }
    void wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return happened_; });
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool happened_ = false;
};

// Allocations that a callback may free.
class Hoard {
  public:
    explicit Hoard(const Allocator& allocator) {
        while (allocator.statistics().free_bytes >= BLOCK) put(allocator.allocate(BLOCK));
    }
    void put(Allocation allocation) {
        std::lock_guard<std::mutex> lock(mutex_);
        kept_.push_back(std::move(allocation));
    }
    bool free_one() {
        Allocation taken;
        std::lock_guard<std::mutex> lock(mutex_);
        if (kept_.empty()) return false;
        taken = std::move(kept_.back());
        kept_.pop_back();
        return true;
    }

  private:
    std::mutex mutex_;
    std::vector<Allocation> kept_;
};

// A callback for many threads: each event frees one of the hoard, for whoever registered first.
auto frees_one_of(Hoard& hoard) {
    return [&hoard](Lock& lock, const FlexPressureRequest&) {
        lock.register_request();
        unlocked(lock, [&] { hoard.free_one(); });
        return FLEX_RETRY;
    };
}

// Threads that allocate for the hoard until they are stopped.
class Requesters {
  public:
    Requesters(const Allocator& allocator, Hoard& hoard, int count) {
        for (int thread = 0; thread < count; ++thread) {
            threads_.emplace_back([&] {
                while (!stop_) hoard.put(allocator.allocate(BLOCK));
            });
        }
    }
    void stop() {
        stop_ = true;
        for (std::thread& thread : threads_) thread.join();
    }

  private:
    std::atomic<bool> stop_{false};
    std::vector<std::thread> threads_;
};

struct Oops : std::runtime_error {
    using std::runtime_error::runtime_error;
};

TEST(a_callback_unlocks_frees_and_the_request_is_rescued) {
    Allocator allocator = Allocator::uniform(16 * BLOCK);
    Hoard hoard(allocator);
    int calls = 0;
    allocator.set_pressure_callback([&](Lock& lock, const FlexPressureRequest& request) {
        ++calls;
        CHECK(request.requested_bytes == BLOCK && request.free_bytes == 0 && request.attempt == 1);
        CHECK(request.cause == FLEX_EXHAUSTED && request.domain_count == 1 && request.domains[0] == 0);
        CHECK(lock.statistics().allocated_bytes.current == 16 * BLOCK && !lock.search());
        CHECK(unlocked(lock, [&] { return hoard.free_one(); }));
        lock.register_request();
        CHECK(lock.search() && !lock.frees_in_flight());
        return FLEX_GIVE_UP;
    });
    const Allocation rescued = allocator.allocate(BLOCK);
    const FlexPressureStatistics pressure = allocator.pressure_statistics();
    CHECK(calls == 1 && pressure.events == 1 && pressure.rescued == 1 && pressure.failed == 0);
    allocator.validate();
}

// What would wait for a mutex is refused while the thread holds one, and a lock that is not the thread's is
// no lock.
TEST(what_a_locked_callback_may_not_do_it_is_told) {
    Allocator allocator = Allocator::uniform(16 * BLOCK);
    Hoard hoard(allocator);
    FlexLock* kept = nullptr;
    allocator.set_pressure_callback([&](Lock& lock, const FlexPressureRequest&) {
        kept = lock.get();
        FlexAllocation out;
        FlexStatistics statistics;
        bool served;
        CHECK_STATUS(FLEX_LOCKED, flex_allocate(allocator.handle(), 128, nullptr, &out));
        CHECK_STATUS(FLEX_LOCKED, flex_statistics(allocator.handle(), &statistics));
        CHECK_STATUS(FLEX_LOCKED, flex_validate(allocator.handle()));
        CHECK_STATUS(FLEX_LOCKED, flex_empty_cache(allocator.handle(), nullptr));
        CHECK_STATUS(FLEX_LOCKED, flex_allocator_create_uniform(4096, nullptr, nullptr));
        CHECK_STATUS(FLEX_INVALID_ARGUMENT, flex_lock_search(kept, nullptr));
        CHECK_STATUS(FLEX_INVALID_ARGUMENT, flex_unlocked(kept, nullptr, nullptr));
        CHECK_STATUS(FLEX_NOT_LOCKED, flex_lock_search(nullptr, &served));
        CHECK_STATUS(FLEX_NOT_LOCKED, flex_lock_search(reinterpret_cast<FlexLock*>(8), &served));
        std::thread([&] { CHECK_STATUS(FLEX_NOT_LOCKED, flex_lock_search(kept, &served)); }).join();
        unlocked(lock, [&] {
            CHECK_STATUS(FLEX_NOT_LOCKED, flex_lock_search(kept, &served));
            CHECK_STATUS(FLEX_NOT_LOCKED, flex_unlocked(kept, [](void*) {}, nullptr));
            CHECK_STATUS(FLEX_OK, flex_validate(allocator.handle()));
            CHECK_STATUS(FLEX_OUT_OF_MEMORY, flex_allocate(allocator.handle(), 128, nullptr, &out));
        });
        return FLEX_GIVE_UP;
    });
    CHECK(CAUGHT(flex::OutOfMemory, allocator.allocate(BLOCK)).status() == FLEX_OUT_OF_MEMORY);
    bool served;
    CHECK_STATUS(FLEX_NOT_LOCKED, flex_lock_search(kept, &served));
    const FlexPressureStatistics pressure = allocator.pressure_statistics();
    CHECK(pressure.events == 2 && pressure.failed == 2 && pressure.skipped[FLEX_SKIP_REENTRANT] == 1);
}

// Releasing works while locked: it is done when the mutex is free, at the latest when the callback returns.
TEST(what_is_released_while_locked_is_freed_before_the_search) {
    Allocator allocator = Allocator::uniform(16 * BLOCK);
    Hoard hoard(allocator);
    Allocator another = Allocator::uniform(BLOCK);
    another.set_pressure_callback([](Lock&, const FlexPressureRequest&) { return FLEX_GIVE_UP; });
    const FlexAllocator last_handle = another.handle();
    std::optional<Allocator> owner(std::move(another));
    for (const bool unlocks : {false, true}) {
        allocator.set_pressure_callback([&](Lock& lock, const FlexPressureRequest&) {
            CHECK(hoard.free_one());
            owner.reset();
            CHECK(lock.statistics().free_bytes == 0);
            if (unlocks) CHECK(unlocked(lock, [&] { return allocator.statistics().free_bytes; }) == BLOCK);
            return FLEX_GIVE_UP;
        });
        hoard.put(allocator.allocate(BLOCK));
    }
    CHECK_STATUS(FLEX_UNKNOWN_ALLOCATOR, flex_validate(last_handle));
    CHECK(allocator.pressure_statistics().rescued == 2);
}

TEST(a_callback_is_called_again_as_long_as_it_says_so) {
    Allocator allocator = Allocator::uniform(16 * BLOCK);
    Hoard hoard(allocator);
    std::uint32_t last_attempt = 0;
    allocator.set_pressure_callback([&](Lock&, const FlexPressureRequest& request) {
        CHECK(request.attempt == last_attempt + 1);
        last_attempt = request.attempt;
        return FLEX_RETRY;
    });
    CAUGHT(flex::OutOfMemory, allocator.allocate(BLOCK));
    CHECK(last_attempt == 64);
    last_attempt = 0;
    allocator.set_pressure_callback([&](Lock& lock, const FlexPressureRequest& request) {
        last_attempt = request.attempt;
        if (request.attempt == 3) unlocked(lock, [&] { hoard.free_one(); });
        return FLEX_RETRY;
    });
    hoard.put(allocator.allocate(BLOCK));
    CHECK(last_attempt == 3);
    CHECK_STATUS(FLEX_OK, flex_set_pressure_callback(
                              allocator.handle(),
                              [](FlexLock*, const FlexPressureRequest*, void* arg) {
                                  ++*static_cast<std::uint32_t*>(arg);
                                  return FlexVerdict{-5};
                              },
                              &last_attempt, nullptr, nullptr));
    CAUGHT(flex::OutOfMemory, allocator.allocate(BLOCK));
    CHECK(last_attempt == 4);  // Once: no verdict means to give up.
}

TEST(threads_under_pressure_are_all_served) {
    Allocator allocator = Allocator::uniform(32 * BLOCK);
    Hoard hoard(allocator);
    std::atomic<std::uint64_t> calls{0};
    allocator.set_pressure_callback([&](Lock& lock, const FlexPressureRequest&) {
        ++calls;
        lock.register_request();
        // What others hoard comes back to it, so this ends.
        unlocked(lock, [&] {
            while (!hoard.free_one()) std::this_thread::yield();
        });
        return FLEX_RETRY;
    });
    auto work = [&] {
        for (int step = 0; step < 200; ++step) {
            Allocation allocation = allocator.allocate(BLOCK);
            *static_cast<int*>(allocation.host_address()) = step;
            hoard.put(std::move(allocation));
        }
    };
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 8; ++thread) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    const FlexPressureStatistics pressure = allocator.pressure_statistics();
    CHECK(pressure.events > 0 && pressure.rescued == pressure.events && pressure.failed == 0);
    CHECK(calls >= pressure.events && allocator.statistics().num_ooms == 0);
    while (hoard.free_one()) continue;
    allocator.validate();
    CHECK(allocator.statistics().allocated_bytes.current == 0);
}

TEST(a_callback_replaced_while_it_runs_ends_before_its_argument_does) {
    Allocator allocator = Allocator::uniform(16 * BLOCK);
    Hoard hoard(allocator);
    Event running, go_on, destroyed;
    std::atomic<bool> returned{false};
    std::shared_ptr<void> argument(nullptr, [&](void*) {
        CHECK(returned);
        destroyed.set();
    });
    allocator.set_pressure_callback([&, argument](Lock& lock, const FlexPressureRequest&) {
        unlocked(lock, [&] {
            running.set();
            go_on.wait();
            hoard.free_one();
        });
        returned = true;
        return FLEX_GIVE_UP;
    });
    argument.reset();
    std::thread requester([&] { hoard.put(allocator.allocate(BLOCK)); });
    running.wait();
    std::atomic<int> second{0};
    flex::Callback previous = allocator.set_pressure_callback([&](Lock&, const FlexPressureRequest&) {
        ++second;
        return FLEX_GIVE_UP;
    });
    CHECK(previous);
    const FlexCallback released = previous.handle();
    previous = flex::Callback();
    CHECK_STATUS(FLEX_UNKNOWN_CALLBACK, flex_callback_release(released));
    CAUGHT(flex::OutOfMemory, allocator.allocate(BLOCK));
    CHECK(second == 1 && !returned);
    go_on.set();
    requester.join();
    destroyed.wait();
    CHECK(allocator.pressure_statistics().rescued == 1);
}

TEST(callbacks_are_replaced_while_threads_allocate) {
    Allocator allocator = Allocator::uniform(16 * BLOCK);
    Hoard hoard(allocator);
    const auto frees_one = frees_one_of(hoard);
    allocator.set_pressure_callback(frees_one);
    Requesters requesters(allocator, hoard, 4);
    for (int round = 0; round < 200; ++round) {
        flex::Callback previous = allocator.set_pressure_callback(frees_one);
        if (round % 2) previous = allocator.restore_pressure_callback(std::move(previous));
        CHECK(previous);
    }
    requesters.stop();
    CHECK(allocator.pressure_statistics().failed == 0);
}

TEST(the_previous_callback_can_be_called_and_put_back) {
    Allocator allocator = Allocator::uniform(16 * BLOCK);
    Hoard hoard(allocator);
    int first = 0, second = 0;
    CHECK(!allocator.set_pressure_callback([&](Lock& lock, const FlexPressureRequest&) {
        ++first;
        unlocked(lock, [&] { hoard.free_one(); });
        return FLEX_GIVE_UP;
    }));
    flex::Callback previous;
    allocator.set_pressure_callback(
        [&](Lock& lock, const FlexPressureRequest&) {
            ++second;
            CHECK(lock.call(previous) == FLEX_GIVE_UP);
            CHECK(lock.search());
            return FLEX_GIVE_UP;
        },
        previous);
    hoard.put(allocator.allocate(BLOCK));
    CHECK(first == 1 && second == 1);
    const flex::Callback chained = allocator.restore_pressure_callback(std::move(previous));
    hoard.put(allocator.allocate(BLOCK));
    CHECK(first == 2 && second == 1);
    CHECK(allocator.set_pressure_callback(nullptr));
    CAUGHT(flex::OutOfMemory, allocator.allocate(BLOCK));
    CHECK(first == 2);
}

// Threads call the new callback as soon as it is set: it must find the previous one then.
TEST(the_previous_callback_is_there_before_the_new_one_is_called) {
    struct Round {
        Event called;
        std::atomic<bool> missing{false};
        flex::Callback previous;
    };
    Allocator allocator = Allocator::uniform(16 * BLOCK);
    Hoard hoard(allocator);
    const auto frees_one = frees_one_of(hoard);
    allocator.set_pressure_callback(frees_one);
    Requesters requesters(allocator, hoard, 2);
    for (int number = 0; number < 100; ++number) {
        const auto round = std::make_shared<Round>();
        const auto calls_previous = [round](Lock& lock, const FlexPressureRequest&) {
            if (!round->previous) round->missing = true;
            const FlexVerdict verdict = round->previous ? lock.call(round->previous) : FLEX_RETRY;
            round->called.set();
            return verdict;
        };
        allocator.set_pressure_callback(calls_previous, round->previous);
        round->called.wait();
        CHECK(!round->missing);
        allocator.set_pressure_callback(frees_one);
    }
    requesters.stop();
    CHECK(allocator.pressure_statistics().failed == 0);
}

TEST(an_exception_of_a_callback_reaches_the_caller_of_allocate) {
    Allocator allocator = Allocator::uniform(16 * BLOCK);
    Hoard hoard(allocator);
    for (const bool frees_first : {false, true}) {
        allocator.set_pressure_callback([&](Lock& lock, const FlexPressureRequest&) -> FlexVerdict {
            unlocked(lock, [&] {
                if (frees_first) hoard.free_one();
                throw Oops("unlocked");
            });
            return FLEX_RETRY;
        });
        CHECK(std::string(CAUGHT(Oops, allocator.allocate(BLOCK)).what()) == "unlocked");
        allocator.set_pressure_callback(
            [](Lock&, const FlexPressureRequest&) -> FlexVerdict { throw Oops("locked"); });
        if (frees_first) hoard.put(allocator.allocate(BLOCK));  // What was free stayed free: nothing leaked.
        CHECK(std::string(CAUGHT(Oops, allocator.allocate(BLOCK)).what()) == "locked");
    }
    const FlexPressureStatistics pressure = allocator.pressure_statistics();
    CHECK(pressure.events == 4 && pressure.failed == 4);
    // A request that was not made through this layer has no one to throw to, now or later.
    FlexAllocation out;
    CHECK_STATUS(FLEX_CALLBACK_FAILED, flex_allocate(allocator.handle(), BLOCK, nullptr, &out));
    hoard.free_one();
    CHECK(allocator.allocate(BLOCK));
    allocator.validate();
}

TEST(an_exception_of_a_previous_callback_can_be_caught_by_the_one_that_calls_it) {
    Allocator allocator = Allocator::uniform(16 * BLOCK);
    Hoard hoard(allocator);
    allocator.set_pressure_callback(
        [](Lock&, const FlexPressureRequest&) -> FlexVerdict { throw Oops("first"); });
    flex::Callback previous;
    previous = allocator.set_pressure_callback([&](Lock& lock, const FlexPressureRequest&) {
        CHECK(std::string(CAUGHT(Oops, lock.call(previous)).what()) == "first");
        unlocked(lock, [&] { hoard.free_one(); });
        return FLEX_GIVE_UP;
    });
    CHECK(allocator.allocate(BLOCK));
}

static thread_local std::string name;

TEST(threads_whose_callbacks_throw_get_their_own_exceptions) {
    Allocator allocator = Allocator::uniform(16 * BLOCK);
    Hoard hoard(allocator);
    allocator.set_pressure_callback(
        [](Lock&, const FlexPressureRequest&) -> FlexVerdict { throw Oops(name); });
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&allocator, thread] {
            name = std::to_string(thread);
            for (int step = 0; step < 50; ++step) {
                CHECK(CAUGHT(Oops, allocator.allocate(BLOCK)).what() == name);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(allocator.pressure_statistics().failed == 200);
}
