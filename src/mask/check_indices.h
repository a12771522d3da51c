// The checked mode of masks: indices outside the arrays that a mod reads.
#pragma once

#include <cstdint>

#include "tilewright/mod.h"

namespace tilewright::mask {

/// UserError "[op] ..." that names the first index of `mod`, a mask or a score mod, which lies
/// outside its capture, and a pair for which it does. Each index is a mask of its own, true where
/// it is inside, so whole blocks are proved at once.
void check_indices(const char* op, const Mod& mod, std::int64_t batch, std::int64_t heads,
                   std::int64_t q_len, std::int64_t kv_len);

}  // namespace tilewright::mask
