/* A native program with an allocator of its own, which embeds Python for a while:
 *
 *     embedding_host PYTHON EXTENSION
 *
 * It allocates under pressure on native threads before Python is initialised (from the library that it is
 * linked to), while Python runs and after that has been finalised (from the devices of the extension), and
 * when Python has been initialised again. Each part ends in counted figures; the last line on standard output
 * is `ok`. */
#include <Python.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "flex.h"

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            _exit(1);                                                                 \
        }                                                                             \
    } while (0)

enum { THREADS = 4, SECONDS = 50 };
static const uint64_t MIB = 1 << 20;

/* The functions of one library: the linked one, or those that the extension exports. */
typedef struct {
    FlexStatus (*allocate)(FlexAllocator, uint64_t, const FlexDirective*, FlexAllocation*);
    FlexStatus (*free)(FlexAllocation);
    FlexStatus (*pressure_statistics)(FlexAllocator, FlexPressureStatistics*);
    FlexStatus (*validate)(FlexAllocator);
    const char* (*last_error)(void);
} Library;

typedef struct {
    const Library* library;
    FlexAllocator allocator;
    uint64_t bytes;
    FlexStatus status;
    char error[512];
} Request;

/* A native thread: allocates, and frees what it got. */
static void* request(void* argument) {
    Request* request = argument;
    FlexAllocation allocation;
    request->status = request->library->allocate(request->allocator, request->bytes, NULL, &allocation);
    if (request->status == FLEX_OK) {
        CHECK(request->library->free(allocation) == FLEX_OK);
    } else {
        snprintf(request->error, sizeof request->error, "%s", request->library->last_error());
    }
    return NULL;
}

/* Requests on native threads, all of which must end with `expected` and, if they fail, with `text` in the
 * error. */
static void request_on_threads(const Library* library, FlexAllocator allocator, uint64_t bytes,
                               FlexStatus expected, const char* text) {
    pthread_t threads[THREADS];
    Request requests[THREADS];
    for (int i = 0; i < THREADS; i++) {
        requests[i] = (Request){library, allocator, bytes, FLEX_OK, ""};
        CHECK(pthread_create(&threads[i], NULL, request, &requests[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        if (requests[i].status != expected || !strstr(requests[i].error, text)) {
            fprintf(stderr, "status %d: %s\n", requests[i].status, requests[i].error);
            _exit(1);
        }
    }
}

static FlexPressureStatistics statistics(const Library* library, FlexAllocator allocator) {
    FlexPressureStatistics statistics;
    CHECK(library->pressure_statistics(allocator, &statistics) == FLEX_OK);
    CHECK(library->validate(allocator) == FLEX_OK);
    CHECK(statistics.events == statistics.rescued + statistics.failed);
    return statistics;
}

static void before_python(void) {
    const Library linked = {flex_allocate, flex_free, flex_pressure_statistics, flex_validate,
                            flex_last_error};
    FlexAllocator allocator, device;
    FlexAllocation all;
    CHECK(flex_device_allocator(0, &device) == FLEX_NOT_AVAILABLE);
    CHECK(flex_allocator_create_uniform(64 * MIB, NULL, &allocator) == FLEX_OK);
    request_on_threads(&linked, allocator, MIB, FLEX_OK, "");
    CHECK(statistics(&linked, allocator).events == 0);

    CHECK(flex_allocate(allocator, 32 * MIB, NULL, &all) == FLEX_OK);
    request_on_threads(&linked, allocator, 40 * MIB, FLEX_OUT_OF_MEMORY, "out of memory");
    const FlexPressureStatistics failed = statistics(&linked, allocator);
    CHECK(failed.failed == THREADS && failed.skipped[FLEX_SKIP_UNINITIALIZED] == THREADS);
    CHECK(failed.young_collections + failed.full_collections == 0);
    CHECK(flex_free(all) == FLEX_OK && flex_allocator_release(allocator) == FLEX_OK);
}

static void start_python(const char* executable) {
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.install_signal_handlers = 0;
    PyStatus status = PyConfig_SetBytesString(&config, &config.program_name, executable);
    if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status)) Py_ExitStatusException(status);
}

static const char GARBAGE[] =
    "import gc, torch, torch_spyre\n"
    "gc.disable()\n"
    "class Node: pass\n"
    "while torch.spyre.mem_get_info()[0] >= 1 << 20:\n"
    "    node = Node(); node.me = node\n"
    "    node.tensor = torch.empty(1 << 20, dtype=torch.uint8, device='spyre')\n"
    "del node\n";

/* The functions of the extension: not those of the same names that this program is linked to. */
static Library extension(const char* path, FlexAllocator* device) {
    void* module = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    CHECK(module != NULL);
    Library library;
    FlexStatus (*device_allocator)(int32_t, FlexAllocator*);
    *(void**)&library.allocate = dlsym(module, "flex_allocate");
    *(void**)&library.free = dlsym(module, "flex_free");
    *(void**)&library.pressure_statistics = dlsym(module, "flex_pressure_statistics");
    *(void**)&library.validate = dlsym(module, "flex_validate");
    *(void**)&library.last_error = dlsym(module, "flex_last_error");
    *(void**)&device_allocator = dlsym(module, "flex_device_allocator");
    CHECK(library.allocate != NULL && library.allocate != flex_allocate);
    CHECK(device_allocator(0, device) == FLEX_OK);
    return library;
}

/* Native threads on a device that is full of dead cycles, while this thread lets go of the GIL. */
static void while_python_runs(const Library* library, FlexAllocator device) {
    PyThreadState* state = PyEval_SaveThread();
    request_on_threads(library, device, 40 * MIB, FLEX_OK, "");
    PyEval_RestoreThread(state);
    const FlexPressureStatistics rescued = statistics(library, device);
    CHECK(rescued.events >= 1 && rescued.failed == 0);
    CHECK(rescued.young_collections + rescued.full_collections >= 1);
}

/* No interpreter that could collect: requests that find room are served, others fail at once. */
static void without_python(const Library* library, FlexAllocator device, FlexAllocation held) {
    const FlexPressureStatistics before = statistics(library, device);
    request_on_threads(library, device, MIB, FLEX_OK, "");
    request_on_threads(library, device, 60 * MIB, FLEX_OUT_OF_MEMORY, "out of memory");
    const FlexPressureStatistics after = statistics(library, device);
    CHECK(after.failed - before.failed == THREADS);
    CHECK(after.skipped[FLEX_SKIP_FINALIZING] - before.skipped[FLEX_SKIP_FINALIZING] == THREADS);
    CHECK(after.full_collections == before.full_collections);
    CHECK(library->free(held) == FLEX_OK);
    request_on_threads(library, device, MIB, FLEX_OK, "");
}

int main(int count, char** arguments) {
    CHECK(count == 3);
    alarm(SECONDS);
    before_python();

    start_python(arguments[1]);
    CHECK(PyRun_SimpleString(GARBAGE) == 0);
    FlexAllocator device;
    FlexAllocation held[2];
    const Library library = extension(arguments[2], &device);
    while_python_runs(&library, device);
    for (int i = 0; i < 2; i++) CHECK(library.allocate(device, 8 * MIB, NULL, &held[i]) == FLEX_OK);
    CHECK(PyRun_SimpleString("tensor = torch.ones(4, device='spyre')\n") ==
          0); /* Freed while Python finalizes. */
    CHECK(Py_FinalizeEx() == 0);
    without_python(&library, device, held[0]);

    start_python(arguments[1]);
    without_python(&library, device, held[1]);
    CHECK(Py_FinalizeEx() == 0);
    puts("ok");
    return 0;
}
