// Score mods that mask: where they give -inf whatever the score is.
#pragma once

#include <optional>

#include "mask/exact.h"
#include "tilewright/mask.h"

namespace tilewright::mask {

/// Where a score mod may give a score other than -inf, as far as positions decide it: a pair that
/// this function excludes gets -inf for every score, even NaN, so attention may skip it. Recognised
/// through `where`, conversions, and sums with finite functions of the positions. Nothing if no
/// region is excluded.
std::optional<MaskFunction> visible_region(const Mod& score_mod);

/// The same as a mask. Attention intersects it with its other masks and still applies the mod.
std::optional<BlockMask> mask_of_scores(const Mod& score_mod, std::int64_t batch,
                                        std::int64_t heads, std::int64_t q_len, std::int64_t kv_len,
                                        BlockSize block_size = {});

}  // namespace tilewright::mask
