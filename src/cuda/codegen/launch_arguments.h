// The arguments of a call in the form that generated kernels take.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/codegen/generate.h"
#include "cuda/runtime/tensor_map.h"
#include "ir/launch.h"

namespace tilewright::cuda {

/// What the arrays of a call allow: alignment and strides of every global Ref. `copies`: threads
/// may copy operands of products (RefFacts::copy_bytes), as on sm_90a.
std::vector<RefFacts> facts_of(const ir::Function& kernel, const ir::Arguments& arguments,
                               bool copies = false);

/// The same for aligned row-major arrays, the usual case; unknown extents are assumed favourable.
std::vector<RefFacts> facts_of_dense(const ir::Function& kernel, bool copies = false);

/// The parameters of one launch. Pointers stay valid while the object lives and is not moved.
class LaunchArguments {
  public:
    /// `kernel` is the prepared one; its grid may have more axes than the call's, all static. With
    /// `generated`, the grid is that of the generated kernel, and its tensor maps, whose parameters
    /// come after these, can be requested.
    LaunchArguments(const ir::Function& kernel, const ir::Arguments& arguments,
                    const Generated* generated = nullptr);
    LaunchArguments(const LaunchArguments&) = delete;
    LaunchArguments& operator=(const LaunchArguments&) = delete;

    std::vector<void*>& parameters() { return parameters_; }
    std::int64_t programs() const { return programs_; }
    const std::vector<TensorMapRequest>& maps() const { return maps_; }

  private:
    void add_maps(const ir::Function& kernel, const ir::Arguments& arguments,
                  const Generated& generated);

    std::vector<std::uint64_t> words_;
    std::vector<void*> parameters_;
    std::vector<TensorMapRequest> maps_;
    std::int64_t programs_ = 1;
};

}  // namespace tilewright::cuda
