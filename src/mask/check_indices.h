// The checked mode of masks: finds indices outside the arrays that a mod reads.
#pragma once

#include <cstdint>

#include "tilewright/mod.h"

namespace tilewright::mask {

/// UserError "[op] ..." that names the first index of `mod`, a mask or a score mod, that lies
/// outside its capture, and a pair for which it does. Each index is checked as a mask that is true
/// where the index is inside, so whole blocks are proved at once.
void check_indices(const char* op, const Mod& mod, std::int64_t batch, std::int64_t heads,
                   std::int64_t q_len, std::int64_t kv_len);

}  // namespace tilewright::mask
