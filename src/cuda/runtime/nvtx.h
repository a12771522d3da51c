// Ranges on the timelines of NVIDIA's profilers (NVTX), without their library or headers.
#pragma once

namespace tilewright::cuda {

/// Names what this thread gives a GPU while it lives. Nothing where no profiler is attached.
class NvtxRange {
  public:
    explicit NvtxRange(const char* name);
    ~NvtxRange();
    NvtxRange(const NvtxRange&) = delete;
    NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace tilewright::cuda
