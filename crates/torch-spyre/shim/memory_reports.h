// Telling torch's profiler of allocations and frees, also of those that collections make for a profiled
// thread.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>

namespace spyre {

// An allocation by a profiled thread, while it lasts: what collector threads free meanwhile is reported to
// that thread's profiler. Does nothing on other threads.
class ProfiledRequest {
  public:
    ProfiledRequest() {
        if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
            begin();
        }
    }
    ~ProfiledRequest() {
        if (C10_UNLIKELY(profiler_ != nullptr)) {
            end();
        }
    }
    ProfiledRequest(const ProfiledRequest&) = delete;
    ProfiledRequest& operator=(const ProfiledRequest&) = delete;

  private:
    void begin();
    void end() noexcept;

    std::shared_ptr<c10::ThreadLocalDebugInfo> profiler_;  // The state that torch keeps for the thread.
};

}  // namespace spyre
