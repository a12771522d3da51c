// Masks as the kernels read them: lists of blocks for each tile, bits in the order of the
// accumulator's registers.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/sm90/mask_parameters.h"
#include "attention/sm90/problem.h"
#include "cuda/runtime/memory.h"
#include "mask/plan.h"

namespace tilewright::attn::sm90 {

/// The lists of one mask, on the host.
struct MaskLists {
    std::vector<twd::attn::MaskTile> tiles;     ///< planes x tiles, each plane's longest first
    std::vector<twd::attn::MaskEntry> entries;  ///< and one spare
    std::vector<std::uint32_t> bits;            ///< tiles of bits; the first has none set
    std::vector<std::uint64_t> live;            ///< as in twd::attn::MaskLists
    std::int64_t blocks = 0;                    ///< visited, over all tiles
};

/// For the forward: the lists of a plan with bits in wgmma's order, tiles of 128 or 192 queries,
/// blocks of 64 keys.
MaskLists lists_of(const mask::MaskPlan& plan);

/// For the backward: of a plan by keys with bits as keys x queries in wgmma's order, over `kv_len`
/// keys. Heads of a group have their tiles in one order.
MaskLists key_lists_of(const mask::MaskPlan& plan, std::int64_t kv_len,
                       std::int64_t heads_per_kv_head);

/// Lists in the memory of a device, for as long as this lives.
class UploadedLists {
  public:
    /// Copies, and waits until it is done. For the backward where the plan is one by keys;
    /// `heads_per_kv_head` matters to it alone, where heads have masks of their own.
    UploadedLists(const mask::MaskPlan& plan, std::int64_t q_len, std::int64_t kv_len, int device,
                  std::int64_t heads_per_kv_head = 1);
    const DeviceMask& mask() const { return mask_; }

  private:
    cuda::Buffer tiles_, entries_, bits_, live_;
    DeviceMask mask_;
};

/// Uploaded lists as the kernels' parameters have them.
twd::attn::MaskLists lists_in(const DeviceMask& mask);

struct BackwardConfig;

/// The plan that the forward kernel for these head dimensions wants.
mask::PlanOptions plan_options(int query_dim, int value_dim);
/// The plan that a backward kernel wants.
mask::PlanOptions backward_plan_options(const BackwardConfig& config);

}  // namespace tilewright::attn::sm90
