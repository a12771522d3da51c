// Masks as the kernels read them: lists of blocks for each tile, and bits in the order of
// accumulator registers.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/sm90/mask_parameters.h"
#include "attention/sm90/problem.h"
#include "cuda/runtime/memory.h"
#include "mask/plan.h"

namespace tilewright::attn::sm90 {

/// The lists of one mask on the host.
struct MaskLists {
    std::vector<twd::attn::MaskTile> tiles;     ///< planes x tiles, the longest of each plane first
    std::vector<twd::attn::MaskEntry> entries;  ///< followed by one spare
    std::vector<std::uint32_t> bits;            ///< tiles of bits; the first has none set
    std::vector<std::uint64_t> live;            ///< as in twd::attn::MaskLists
    std::int64_t blocks = 0;                    ///< number of visits, over all tiles
};

/// For the forward pass: lists from a plan with bits in wgmma's order, with tiles of 128 or 192
/// queries and blocks of 64 keys.
MaskLists lists_of(const mask::MaskPlan& plan);

/// For the backward pass: lists from a plan by keys, over `kv_len` keys, with bits as keys x
/// queries in wgmma's order. The heads of a group share one order of tiles.
MaskLists key_lists_of(const mask::MaskPlan& plan, std::int64_t kv_len,
                       std::int64_t heads_per_kv_head);

/// Lists in the memory of a device, for as long as this lives.
class UploadedLists {
  public:
    /// Copies the lists and waits until that is done. They are the backward's if the plan is by
    /// keys; only these use `heads_per_kv_head`, if heads have masks of their own.
    UploadedLists(const mask::MaskPlan& plan, std::int64_t q_len, std::int64_t kv_len, int device,
                  std::int64_t heads_per_kv_head = 1);
    const DeviceMask& mask() const { return mask_; }

  private:
    cuda::Buffer tiles_, entries_, bits_, live_;
    DeviceMask mask_;
};

/// Uploaded lists in the form of the kernels' parameters.
twd::attn::MaskLists lists_in(const DeviceMask& mask);

struct BackwardConfig;

struct ForwardConfig;

/// The options of the plan that a forward kernel needs, or the one for these head dimensions where
/// queries have many keys.
mask::PlanOptions plan_options(const ForwardConfig& config);
mask::PlanOptions plan_options(int query_dim, int value_dim);
/// The options of the plan that a backward kernel needs.
mask::PlanOptions backward_plan_options(const BackwardConfig& config);

}  // namespace tilewright::attn::sm90
