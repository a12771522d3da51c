// Masks whose arrays live on a GPU: evaluated there by one prebuilt kernel.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cuda/runtime/compiler.h"
#include "ir/passes/intervals.h"
#include "mask/bytecode.h"
#include "mask/mask_data.h"

namespace tilewright::mask {

/// The interpreter, and the kernel that finds the ends of arrays.
enum class MaskKernel : std::uint8_t { pieces, ranges };

/// A kernel's text, which is the same for every mask; compilable without a GPU.
cuda::CompileRequest kernel_request(MaskKernel kernel, const std::string& arch);

/// Evaluates pieces of a mask on the GPU of its arrays, without compiling anything for the mask.
class GpuPieces {
  public:
    /// `arrays` live on one GPU.
    GpuPieces(const Bytecode& code, std::span<const Tensor> arrays);

    /// The pieces at these places (b, h, first query, first key), by this thread's stream; waits.
    std::vector<Atom> evaluate(std::span<const twd::mask::Place> places) const;

  private:
    Bytecode code_;
    Tensor steps_, constants_, arrays_;  ///< as the interpreter reads them
};

/// The ranges of an array on a GPU: ends of every 64 elements are found there, and only they come
/// to the host.
std::shared_ptr<const ir::RangeTree> gpu_range_tree(const Tensor& array);

}  // namespace tilewright::mask
