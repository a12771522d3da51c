// Masks whose arrays are on a GPU: evaluated there by one prebuilt kernel.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cuda/runtime/compiler.h"
#include "ir/passes/intervals.h"
#include "mask/bytecode.h"
#include "mask/mask_data.h"

namespace tilewright::mask {

/// The interpreter, and the kernel that finds the ranges of arrays.
enum class MaskKernel : std::uint8_t { pieces, ranges };

/// A kernel's source, which is the same for every mask; can be compiled without a GPU.
cuda::CompileRequest kernel_request(MaskKernel kernel, const std::string& arch);

/// Evaluates pieces of a mask on the GPU of its arrays, without compiling anything for the mask.
class GpuPieces {
  public:
    /// `arrays` are on one GPU.
    GpuPieces(const Bytecode& code, std::span<const Tensor> arrays);

    /// Evaluates the pieces at these places (b, h, first query, first key) on this thread's stream,
    /// and waits.
    std::vector<Atom> evaluate(std::span<const twd::mask::Place> places) const;

  private:
    Bytecode code_;
    Tensor steps_, constants_, arrays_;  ///< as the interpreter reads them
};

/// The ranges of an array on a GPU: minimum and maximum of every 64 elements are found there, and
/// only these are copied to the host.
std::shared_ptr<const ir::RangeTree> gpu_range_tree(const Tensor& array);

}  // namespace tilewright::mask
