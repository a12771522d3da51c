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

/// The state of a BlockMask. Everything derived from the mask is made once, when it is first
/// needed.
// Declared in a public header, but not part of the API.
struct __attribute__((visibility("hidden"))) BlockMaskState {
    std::int64_t batch = 1, heads = 1;  ///< shape of the mask; `data` may store fewer
    BlockSize block_size;
    std::shared_ptr<const MaskData> data;

    /// The block-level view.
    const BlockLevel& level() const;
    std::shared_ptr<const MaskPlan> plan(const PlanOptions& options) const;
    double pieces_of_row() const;

    mutable std::mutex mutex;
    mutable std::shared_ptr<const BlockLevel>
        made_level;  ///< may be set in advance: as the caller gave it
    mutable std::map<PlanOptions, std::shared_ptr<const MaskPlan>> plans;
    mutable std::optional<double> counted_pieces;
};

/// The plan of a mask for a kernel with these tiles; later calls return the same object.
std::shared_ptr<const MaskPlan> plan(const BlockMask& mask, const PlanOptions& options);

/// The mean number of 64 x 64 pieces in which pairs attend, over rows of 64 queries.
double pieces_of_row(const BlockMask& mask);

/// UserError "[op] ..." unless the mask fits a call with these sizes: lengths must be equal, and
/// the mask's batches and heads equal or 1.
void check_fits(const char* op, const BlockMask& mask, std::int64_t batch, std::int64_t heads,
                std::int64_t q_len, std::int64_t kv_len);

/// True if both hold the same pairs.
bool equal(const MaskData& a, const MaskData& b);

}  // namespace tilewright::mask
