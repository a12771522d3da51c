// Score mods that mask: where they give -inf whatever the score.
#pragma once

#include <optional>

#include "mask/exact.h"
#include "tilewright/mask.h"

namespace tilewright::mask {

/// Where a score mod may give something else than -inf, as far as positions decide it: a pair that
/// this function leaves out gets -inf for every score, NaN included, so attention may skip it.
/// Found through `where`, conversions and sums with finite functions of the positions. Nothing when
/// no region is left out.
std::optional<MaskFunction> visible_region(const Mod& score_mod);

/// The same, built: attention intersects it with its other masks and still applies the mod.
std::optional<BlockMask> mask_of_scores(const Mod& score_mod, std::int64_t batch,
                                        std::int64_t heads, std::int64_t q_len, std::int64_t kv_len,
                                        BlockSize block_size = {});

}  // namespace tilewright::mask
