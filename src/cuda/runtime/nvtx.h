// Ranges on the timelines of NVIDIA's profilers (NVTX), without their library or headers.
#pragma once

namespace tilewright::cuda {

/// Names the GPU work that this thread submits while it lives. Does nothing without a profiler.
class NvtxRange {
  public:
    explicit NvtxRange(const char* name);
    ~NvtxRange();
    NvtxRange(const NvtxRange&) = delete;
    NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace tilewright::cuda
