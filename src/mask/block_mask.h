// What a BlockMask holds, and what kernels take from it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "mask/block_level.h"
#include "mask/mask_data.h"
#include "mask/plan.h"

namespace tilewright::mask {

/// The state of a BlockMask. What is derived from the mask is made once, when it is first asked
/// for.
// Declared in a public header, but no part of the API.
struct __attribute__((visibility("hidden"))) BlockMaskState {
    std::int64_t batch = 1, heads = 1;  ///< of the mask's shape; `data` may store fewer
    BlockSize block_size;
    std::shared_ptr<const MaskData> data;

    /// The block-level view.
    const BlockLevel& level() const;
    std::shared_ptr<const MaskPlan> plan(const PlanOptions& options) const;

    mutable std::mutex mutex;
    mutable std::shared_ptr<const BlockLevel>
        made_level;  ///< set beforehand: as the caller gave it
    mutable std::map<PlanOptions, std::shared_ptr<const MaskPlan>> plans;
};

/// The plan of a mask for a kernel with these tiles; later calls give the same one.
std::shared_ptr<const MaskPlan> plan(const BlockMask& mask, const PlanOptions& options);

/// UserError "[op] ..." unless the mask fits a call with these sizes: equal lengths, and batches
/// and heads that are equal or 1 in the mask.
void check_fits(const char* op, const BlockMask& mask, std::int64_t batch, std::int64_t heads,
                std::int64_t q_len, std::int64_t kv_len);

/// True where both hold the same pairs.
bool equal(const MaskData& a, const MaskData& b);

}  // namespace tilewright::mask
