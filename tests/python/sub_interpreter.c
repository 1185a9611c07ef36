/* Requests by threads of a sub-interpreter, through the C ABI. Called through ctypes.PyDLL, so with the GIL
 * held and attached to the main interpreter. */
#include <Python.h>
#include <pthread.h>

#include "flex.h"

/* Makes a sub-interpreter, and returns its first thread state. */
PyThreadState* sub_interpreter_begin(void) {
    PyThreadState* main_state = PyThreadState_Get();
    PyThreadState* sub = Py_NewInterpreter();
    PyThreadState_Swap(main_state);
    return sub;
}

void sub_interpreter_end(PyThreadState* sub) {
    PyThreadState* main_state = PyThreadState_Swap(sub);
    Py_EndInterpreter(sub);
    PyThreadState_Swap(main_state);
}

typedef struct {
    PyThreadState* sub;
    FlexAllocator allocator;
    uint64_t bytes;
    int attached;
    FlexStatus status;
} Request;

static void allocate_and_free(Request* request) {
    FlexAllocation allocation;
    request->status = flex_allocate(request->allocator, request->bytes, NULL, &allocation);
    if (request->status == FLEX_OK) flex_free(allocation);
}

/* On this thread, attached to the sub-interpreter; if `attached` is 0 it lets go of the GIL for the request.
 */
FlexStatus request_here(PyThreadState* sub, FlexAllocator allocator, uint64_t bytes, int attached) {
    Request request = {sub, allocator, bytes, attached, FLEX_OK};
    PyThreadState* main_state = PyThreadState_Swap(sub);
    if (attached) {
        allocate_and_free(&request);
    } else {
        PyThreadState* state = PyEval_SaveThread();
        allocate_and_free(&request);
        PyEval_RestoreThread(state);
    }
    PyThreadState_Swap(main_state);
    return request.status;
}

static void* run(void* argument) {
    Request* request = argument;
    PyThreadState* state = PyThreadState_New(PyThreadState_GetInterpreter(request->sub));
    PyEval_RestoreThread(state);
    if (request->attached) {
        allocate_and_free(request);
    } else {
        PyEval_SaveThread();
        allocate_and_free(request);
        PyEval_RestoreThread(state);
    }
    PyThreadState_Clear(state);
    PyThreadState_DeleteCurrent();
    return NULL;
}

/* On a thread of the sub-interpreter's own, while this one waits without the GIL. -1 if there is no thread.
 */
int request_on_its_thread(PyThreadState* sub, FlexAllocator allocator, uint64_t bytes, int attached) {
    Request request = {sub, allocator, bytes, attached, FLEX_OK};
    pthread_t thread;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = pthread_create(&thread, NULL, run, &request) || pthread_join(thread, NULL);
    Py_END_ALLOW_THREADS;
    return failed ? -1 : (int)request.status;
}
