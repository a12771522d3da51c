// Score mods as CUDA text for the Hopper kernels: what depends on a tile, a row or a column is
// computed once for it, what is affine in the score or the position joins the multiply-add of the
// exponent.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/sm90/device_tensor.h"
#include "attention/spec.h"
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
    bool derivative = false;                         ///< backward: the text has it too
    std::int64_t positions = std::int64_t{1} << 22;  ///< q and kv are below
    /// Of each capture, in the order of the Ref parameters: no element at all; and whether elements
    /// of an even last index and the next one may be read together (unit stride, even extent that
    /// covers every column, alignment).
    struct Capture {
        bool empty = false;
        bool pairs = false;
        bool differentiated = false;  ///< backward: its gradient is wanted
        auto operator<=>(const Capture&) const = default;
    };
    std::vector<Capture> captures;
    auto operator<=>(const ScoreModFacts&) const = default;
};

/// What kernels depend on of captures. `differentiated`: which gradients are wanted; those after
/// its end are not.
std::vector<CaptureSpec> specs_of(const std::vector<CaptureView>& captures,
                                  const std::vector<bool>& differentiated = {});

/// The rule that captures of a mod break for these kernels, naming the capture; empty: none.
std::string broken_rule(const ir::Function& mod, const std::vector<CaptureSpec>& captures);

/// Facts of captures that break no rule, for `columns` key (or query) positions.
ScoreModFacts score_mod_facts(const std::vector<CaptureSpec>& captures, std::int64_t rows,
                              std::int64_t columns, bool columns_are_keys = true);
/// UserError for captures that do.
ScoreModFacts score_mod_facts(const ir::Function& mod, const std::vector<CaptureView>& captures,
                              std::int64_t rows, std::int64_t columns,
                              bool columns_are_keys = true);

/// How the gradient of a captured array is summed up, in S^T = K Q^T, whose rows are keys: by what
/// the indices of one gather depend on beside batch and head.
struct CaptureGradient {
    enum class Spread : std::uint8_t {
        tile,    ///< nothing: one sum per head
        row,     ///< keys: a sum per head and key
        column,  ///< queries: sums of blocks, added where they meet
        pair,    ///< both: each pair is added alone
    };
    std::size_t capture = 0;
    Spread spread = Spread::tile;
    /// The dimension of the array that is indexed by just the batch, the head, the query, the key;
    /// -1: none is.
    int dimension_of[4] = {-1, -1, -1, -1};
};

/// The header "score_mod.cuh": twd::attn::ScoreMod and twd::attn::ModArguments.
struct ScoreModText {
    std::string text;
    /// The new score is one multiple of the old one and a sum of what is equal for a row or linear
    /// in the column: no value of an element's own beside it.
    bool affine = false;
    std::vector<CaptureGradient> gradients;  ///< in the order of their words
    std::uint64_t number = 0;  ///< of kept_mod_text, never given twice: stands for the text in keys
    std::string refusal;       ///< of find_mod_text: why there is no text; empty: there is one
};

/// The mod has the parameters score (f32), b, h, q, kv (i64) and one Ref per capture; it yields the
/// new score. For the backward the text has its derivative too, and gradients of the captures that
/// facts.captures choose. UserError naming the op that has no text.
ScoreModText score_mod_header(const ir::Function& mod, const ScoreModFacts& facts);

/// The same, with a number or a refusal, kept for the next call with this mod and facts.
std::shared_ptr<const ScoreModText> find_mod_text(const std::shared_ptr<const ir::Function>& mod,
                                                  const ScoreModFacts& facts);
/// UserError where there is no text.
std::shared_ptr<const ScoreModText> kept_mod_text(const std::shared_ptr<const ir::Function>& mod,
                                                  const ScoreModFacts& facts);

/// The words of ModArguments for a launch: per capture its address, extents and strides. At least
/// one word.
std::vector<std::uint64_t> score_mod_words(const std::vector<CaptureView>& captures);

/// The mod whose pairs outside `mask` (b, h, q, kv, captures -> bool) score -inf; without a score
/// mod, that of the identity. The captures of the mask follow those of the score.
ir::Function with_mask(const ir::Function* score, const ir::Function& mask);

}  // namespace tilewright::attn::sm90
