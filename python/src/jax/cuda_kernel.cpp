// Users' CUDA C++ as custom calls.
#include "tilewright/cuda_kernel.h"

#include "jax/ffi.h"

namespace tilewright::jax {
namespace {

/// Runs the plan whose text is the attribute `plan`; its arrays are the operands, then the results.
class CudaKernelSite {
  public:
    explicit CudaKernelSite(const Attributes& given) : plan_(given.text("plan")) {}

    bool repeats() const { return false; }

    void run(const CustomCall& call) const {
        std::vector<Tensor> arrays = call.operands;
        arrays.insert(arrays.end(), call.results.begin(), call.results.end());
        plan_.run(arrays);
    }

  private:
    CudaPlan plan_;
};

}  // namespace

void add_cuda_kernel_targets(nb::list& targets) {
    add_target<CudaKernelSite, CommandBuffers::yes>(targets, "tilewright_cuda_kernel");
}

}  // namespace tilewright::jax
