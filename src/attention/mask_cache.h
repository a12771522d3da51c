// Masks as data, shared between calls: built once for each mod and size, intersected once, their
// plans copied once to each GPU.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "mask/block_mask.h"
#include "mask/plan.h"
#include "tilewright/mask.h"

namespace tilewright::attn {

struct MaskSize {
    std::int64_t batch = 1, heads = 1, q_len = 0, kv_len = 0;
    auto operator<=>(const MaskSize&) const = default;
};

/// The mask of a mask mod. It is cached unless the mod reads arrays, which may have changed by the
/// next call.
BlockMask mask_of_mod(const Mod& mod, const MaskSize& size);

/// Where a score mod may give a score other than -inf (mask/score_region.h), cached likewise.
std::optional<BlockMask> mask_of_score_mod(const Mod& mod, const MaskSize& size);

/// Which pairs of packed sequences attend, in packed coordinates: those of one sequence with
/// q - left <= kv <= q + right (-1: unbounded), counted within it. `starts` are those of
/// AttentionBuffers. Cached.
BlockMask mask_of_sequences(const std::vector<std::int64_t>& starts,
                            const std::vector<std::int64_t>& kv_starts, std::int64_t left,
                            std::int64_t right);

/// a & b, cached for as long as both masks live.
BlockMask intersection(const BlockMask& a, const BlockMask& b);

/// The plan of a mask with its arrays on this device. The first call copies them and waits for the
/// copy.
std::shared_ptr<const mask::MaskPlan> plan_on(Device device, const BlockMask& mask,
                                              const mask::PlanOptions& options);

}  // namespace tilewright::attn
