// Score mods as CUDA text for the Hopper kernels. What depends only on a tile, a row or a column is
// computed once for it; what is affine in the score or the position is folded into the exponent's
// multiply-add.
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

/// What the text of a mod may rely on in addition to the mod itself; part of the kernel's key.
struct ScoreModFacts {
    /// Which position varies over a thread's columns: keys in S = Q K^T, queries in its transpose.
    bool columns_are_keys = true;
    bool derivative = false;                         ///< backward: the text includes the derivative
    std::int64_t positions = std::int64_t{1} << 22;  ///< q and kv are below this
    /// For each capture, in the order of the Ref parameters: whether it has no elements, and
    /// whether elements at an even last index and the next one may be read together (unit stride,
    /// even extent that covers every column, alignment).
    struct Capture {
        bool empty = false;
        bool pairs = false;
        bool differentiated = false;  ///< backward: its gradient is wanted
        auto operator<=>(const Capture&) const = default;
    };
    std::vector<Capture> captures;
    auto operator<=>(const ScoreModFacts&) const = default;
};

/// What kernels depend on in captures. `differentiated` says which gradients are wanted; captures
/// past its end have none.
std::vector<CaptureSpec> specs_of(const std::vector<CaptureView>& captures,
                                  const std::vector<bool>& differentiated = {});

/// The rule of these kernels that a mod's captures break, with the capture's number; empty: none.
std::string broken_rule(const ir::Function& mod, const std::vector<CaptureSpec>& captures);

/// The facts for captures that break no rule, for `columns` key (or query) positions.
ScoreModFacts score_mod_facts(const std::vector<CaptureSpec>& captures, std::int64_t rows,
                              std::int64_t columns, bool columns_are_keys = true);
/// The same, with UserError for captures that break a rule.
ScoreModFacts score_mod_facts(const ir::Function& mod, const std::vector<CaptureView>& captures,
                              std::int64_t rows, std::int64_t columns,
                              bool columns_are_keys = true);

/// How the gradient of a captured array is summed in S^T = K Q^T, whose rows are keys: by what the
/// indices of one gather depend on, apart from batch and head.
struct CaptureGradient {
    enum class Spread : std::uint8_t {
        tile,    ///< on neither: one sum per head
        row,     ///< on keys: one sum per head and key
        column,  ///< on queries: sums per block, added to the array atomically
        pair,    ///< on both: each pair is added alone
    };
    std::size_t capture = 0;
    Spread spread = Spread::tile;
    /// The dimension of the array that is indexed by just the batch, the head, the query or the
    /// key; -1: none is.
    int dimension_of[4] = {-1, -1, -1, -1};
};

/// The header "score_mod.cuh": twd::attn::ScoreMod and twd::attn::ModArguments.
struct ScoreModText {
    std::string text;
    /// The new score is a multiple of the old one plus a sum of terms that are constant for a row
    /// or linear in the column, without further values for single elements.
    bool affine = false;
    std::vector<CaptureGradient> gradients;  ///< in the order of their words
    std::uint64_t number = 0;  ///< set by find_mod_text, unique: stands for the text in keys
    std::string refusal;       ///< why there is no text; empty: there is one
};

/// A mod has the parameters score (f32), b, h, q, kv (i64) and one Ref per capture, and yields the
/// new score. For the backward pass the text also has its derivative, and the gradients of the
/// captures that facts.captures selects. A refusal names an op without text or derivative.
ScoreModText score_mod_header(const ir::Function& mod, const ScoreModFacts& facts);

/// The same with a number, cached for later calls with this mod and these facts.
std::shared_ptr<const ScoreModText> find_mod_text(const std::shared_ptr<const ir::Function>& mod,
                                                  const ScoreModFacts& facts);
/// The same; UserError if there is no text.
std::shared_ptr<const ScoreModText> kept_mod_text(const std::shared_ptr<const ir::Function>& mod,
                                                  const ScoreModFacts& facts);

/// The words of ModArguments for a launch: address, extents and strides of each capture. At least
/// one word.
std::vector<std::uint64_t> score_mod_words(const std::vector<CaptureView>& captures);

/// The mod that gives pairs outside `mask` (b, h, q, kv, captures -> bool) a score of -inf; without
/// a score mod, the masked identity. The mask's captures follow those of the score mod.
ir::Function with_mask(const ir::Function* score, const ir::Function& mask);

}  // namespace tilewright::attn::sm90
