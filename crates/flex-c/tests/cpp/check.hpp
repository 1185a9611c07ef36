// The smallest test harness: tests register themselves, a failed check ends the program and says where.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

struct Test {
    const char* name;
    void (*run)();
};

inline std::vector<Test>& tests() {
    static std::vector<Test> all;
    return all;
}

struct Registration {
    Registration(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

#define TEST(name)                                           \
    static void name();                                      \
    static const Registration register_##name(#name, &name); \
    static void name()

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            std::_Exit(1);                                                                 \
        }                                                                                  \
    } while (false)

#define CHECK_STATUS(expected, call)                                                                 \
    do {                                                                                             \
        const FlexStatus status = (call);                                                            \
        if (status != (expected)) {                                                                  \
            std::fprintf(stderr, "%s:%d: %s gave %s (%s), expected %s\n", __FILE__, __LINE__, #call, \
                         flex_status_name(status), flex_last_error(), #expected);                    \
            std::_Exit(1);                                                                           \
        }                                                                                            \
    } while (false)

// Runs an expression that must throw, and returns what it throws.
#define CAUGHT(type, expression)                                                            \
    [&]() -> type {                                                                         \
        try {                                                                               \
            (void)(expression);                                                             \
        } catch (const type& error) {                                                       \
            return error;                                                                   \
        }                                                                                   \
        std::fprintf(stderr, "%s:%d: no %s: %s\n", __FILE__, __LINE__, #type, #expression); \
        std::_Exit(1);                                                                      \
    }()
