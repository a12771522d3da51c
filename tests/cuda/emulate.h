// Runs generated CUDA C++ on the host: the text is compiled by the C++ compiler against emulated
// PTX headers (tests/cuda/emulator) and its blocks run one after another.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cuda/codegen/generate.h"
#include "cuda/codegen/launch_arguments.h"

namespace tilewright::testing_support {

/// Kernels compiled together.
class EmulatedKernels {
  public:
    /// Throws std::runtime_error with the compiler's output if a text does not compile.
    explicit EmulatedKernels(const std::vector<cuda::Generated>& kernels);
    ~EmulatedKernels();
    EmulatedKernels(const EmulatedKernels&) = delete;
    EmulatedKernels& operator=(const EmulatedKernels&) = delete;

    /// Runs all programs of kernel `i`, with threads in an order chosen by `seed`.
    void run(std::size_t i, cuda::LaunchArguments& arguments, unsigned seed) const;

  private:
    using Entry = void (*)(void**, const unsigned*, int, unsigned);
    std::vector<cuda::Generated> kernels_;
    void* library_ = nullptr;
};

}  // namespace tilewright::testing_support
