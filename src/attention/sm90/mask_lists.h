// Masks as the forward kernel reads them: lists of key blocks for each tile of query rows, bits in
// the order of the accumulator's registers.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/sm90/forward.h"
#include "attention/sm90/forward_parameters.h"
#include "cuda/runtime/memory.h"
#include "mask/plan.h"

namespace tilewright::attn::sm90 {

/// The lists of one mask, on the host.
struct MaskLists {
    std::vector<tw::attn::MaskTile> tiles;     ///< planes x tiles, each plane's longest first
    std::vector<tw::attn::MaskEntry> entries;  ///< and one spare
    std::vector<std::uint32_t> bits;           ///< tiles of bits; the first has none set
    std::int64_t blocks = 0;                   ///< visited, over all tiles
};

/// The lists of a plan with bits in wgmma's order, tiles of 128 or 192 rows, blocks of 64 or 128
/// keys.
MaskLists lists_of(const mask::MaskPlan& plan);

/// Lists in the memory of a device, for as long as this lives.
class UploadedLists {
  public:
    /// Copies, and waits until it is done.
    UploadedLists(const mask::MaskPlan& plan, std::int64_t q_len, std::int64_t kv_len, int device);
    const DeviceMask& mask() const { return mask_; }

  private:
    cuda::Buffer tiles_, entries_, bits_;
    DeviceMask mask_;
};

/// The plan that a kernel for these head dimensions wants.
mask::PlanOptions plan_options(int query_dim, int value_dim);

}  // namespace tilewright::attn::sm90
