// Work captured once into a CUDA graph, to be timed without what its calls cost the host.
#pragma once

#include <functional>

#include "tilewright/tensor.h"

namespace tilewright::run {

/// Runs `work` twice, to compile and to allocate, and captures `calls` of it. It reads and writes
/// the same memory at each replay. On a stream of its own.
class Replay {
  public:
    Replay(const std::function<void()>& work, int calls, Device device);
    ~Replay();
    Replay(const Replay&) = delete;
    Replay& operator=(const Replay&) = delete;

    void launch() const;
    void wait() const;

  private:
    Device device_;
    void *stream_ = nullptr, *runnable_ = nullptr;
};

}  // namespace tilewright::run
