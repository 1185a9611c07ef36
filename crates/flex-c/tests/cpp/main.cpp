// Runs every test, under one watchdog. With the argument `raw-throw` it lets an exception leave a C callback
// instead, which has to end the process.
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "check.hpp"
#include "flex.hpp"

static const char* volatile running = "";

static void hung(int) {
    static const char text[] = "watchdog: hung in ";
    (void)!write(2, text, sizeof text - 1);
    (void)!write(2, running, std::strlen(running));
    (void)!write(2, "\n", 1);
    _exit(3);
}

static FlexVerdict throws(FlexLock*, const FlexPressureRequest*, void*) { throw 1; }

static int raw_throw() {
    flex::Allocator allocator = flex::Allocator::uniform(4096);
    flex::Allocation all = allocator.allocate(4096);
    CHECK_STATUS(FLEX_OK, flex_set_pressure_callback(allocator.handle(), throws, nullptr, nullptr, nullptr));
    FlexAllocation more;
    flex_allocate(allocator.handle(), 128, nullptr, &more);
    return 0;
}

// Two threads write the same device memory, with nothing between them but allocations of their own.
static int race() {
    flex::Allocator allocator = flex::Allocator::uniform(1 << 20);
    const flex::Allocation shared = allocator.allocate(128);
    int* value = static_cast<int*>(shared.host_address());
    const auto work = [&] {
        for (int step = 0; step < 1000; ++step) ++*value;
        const flex::Allocation own = allocator.allocate(128);
    };
    std::thread other(work);
    work();
    other.join();
    return 0;
}

int main(int argc, char** argv) {
    signal(SIGALRM, hung);
    alarm(60);
    if (argc > 1 && std::strcmp(argv[1], "raw-throw") == 0) return raw_throw();
    if (argc > 1 && std::strcmp(argv[1], "race") == 0) return race();
    for (const Test& test : tests()) {
        running = test.name;
        test.run();
        std::printf("ok %s\n", test.name);
    }
    std::printf("%zu tests passed\n", tests().size());
    return 0;
}
