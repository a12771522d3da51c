// Masks from functions, by interval analysis.
#pragma once

#include "mask/exact.h"
#include "mask/mask_data.h"

namespace tilewright::mask {

/// What building a mask took.
struct BuildReport {
    std::int64_t boxes = 0;      ///< ranges of queries x keys that were analysed
    std::int64_t pieces = 0;     ///< 64 x 64 pieces that stayed partial
    std::int64_t evaluated = 0;  ///< of them, those worked out element by element: distinct keys
};

/// The mask over batch x heads x q_len x kv_len. Squares of queries x keys are analysed from the
/// whole mask down to 64 x 64, only where they are neither empty nor full; what stays is grouped
/// by key, and one piece of each group is evaluated exactly. Work and memory grow with the pieces
/// at the borders of the mask, not with its area. Batches and heads that the function does not read
/// are stored once. In parallel; the result does not depend on the threads.
MaskData build(const MaskFunction& mask, std::int64_t batch, std::int64_t heads, std::int64_t q_len,
               std::int64_t kv_len, BuildReport* report = nullptr);

/// The same for masks that are asked for again and again: one that reads no array and is small is
/// kept, and a later call gives it.
std::shared_ptr<const MaskData> build_kept(const MaskFunction& mask, std::int64_t batch,
                                           std::int64_t heads, std::int64_t q_len,
                                           std::int64_t kv_len);

}  // namespace tilewright::mask
