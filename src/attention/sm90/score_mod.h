// Score mods as CUDA text for the Hopper kernels: what depends on a tile, a row or a column is
// computed once for it, what is affine in the score or the position joins the multiply-add of the
// exponent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/sm90/device_tensor.h"
#include "ir/function.h"

namespace tilewright::attn::sm90 {

/// A captured array in device memory. Strides count elements.
struct CaptureView {
    cuda::DeviceAddress address = 0;
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape, strides;
};

/// What the text of a mod may rely on beside the mod itself; part of the kernel's key.
struct ScoreModFacts {
    /// Which position runs over a thread's columns: keys in S = Q K^T, queries in its transpose.
    bool columns_are_keys = true;
    std::int64_t positions = std::int64_t{1} << 22;  ///< q and kv are below
    /// Of each capture, in the order of the Ref parameters: no element at all; and whether elements
    /// of an even last index and the next one may be read together (unit stride, even extent that
    /// covers every column, alignment).
    struct Capture {
        bool empty = false;
        bool pairs = false;
        auto operator<=>(const Capture&) const = default;
    };
    std::vector<Capture> captures;
    auto operator<=>(const ScoreModFacts&) const = default;
};

/// Facts of these captures for `columns` key (or query) positions. UserError naming the capture for
/// what the kernels cannot read.
ScoreModFacts score_mod_facts(const ir::Function& mod, const std::vector<CaptureView>& captures,
                              std::int64_t rows, std::int64_t columns,
                              bool columns_are_keys = true);

/// Text of the header "score_mod.cuh": tw::attn::ScoreMod and tw::attn::ModArguments. The mod has
/// the parameters score (f32), b, h, q, kv (i64) and one Ref per capture; it yields the new score
/// and, where a second result stands, its derivative by the score. UserError naming the op that has
/// no text.
std::string score_mod_header(const ir::Function& mod, const ScoreModFacts& facts);

/// The words of ModArguments for a launch: per capture its address, extents and strides. At least
/// one word.
std::vector<std::uint64_t> score_mod_words(const std::vector<CaptureView>& captures);

/// The mod whose pairs outside `mask` (b, h, q, kv, captures -> bool) score -inf; without a score
/// mod, that of the identity. The captures of the mask follow those of the score.
ir::Function with_mask(const ir::Function* score, const ir::Function& mask);

}  // namespace tilewright::attn::sm90
