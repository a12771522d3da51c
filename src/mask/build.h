// Masks from functions by interval analysis.
#pragma once

#include "mask/exact.h"
#include "mask/mask_data.h"

namespace tilewright::mask {

/// Statistics of building a mask.
struct BuildReport {
    std::int64_t boxes = 0;      ///< analysed ranges of queries x keys
    std::int64_t pieces = 0;     ///< 64 x 64 pieces that stayed partial
    std::int64_t evaluated = 0;  ///< those evaluated pair by pair: one per distinct key
};

/// The mask over batch x heads x q_len x kv_len. Squares of queries x keys are analysed from the
/// whole mask down to 64 x 64, but only where they are neither empty nor full. The remaining pieces
/// are grouped by key, and one piece of each group is evaluated exactly. Work and memory grow with
/// the pieces at the borders of the mask, not with its area. Batches and heads that the function
/// does not read are stored once. Runs in parallel; the result does not depend on the threads.
MaskData build(const MaskFunction& mask, std::int64_t batch, std::int64_t heads, std::int64_t q_len,
               std::int64_t kv_len, BuildReport* report = nullptr);

/// The same for masks that are requested again and again: a small mask that reads no array is
/// cached for later calls.
std::shared_ptr<const MaskData> build_kept(const MaskFunction& mask, std::int64_t batch,
                                           std::int64_t heads, std::int64_t q_len,
                                           std::int64_t kv_len);

}  // namespace tilewright::mask
