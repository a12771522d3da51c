// What happens to the scores of a tile of (query, key) pairs: mods, masks, dropout.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "attention/tiles/features.h"

namespace tilewright::attn::tiles {

/// Where the pairs of a tile stand. i64; b and h scalars (in decode h is [group, 1]), q [block_q,
/// 1] or a scalar, kv [1, block_k]; their first positions. Rows may also be keys: q [1, queries],
/// kv [keys, 1].
struct Place {
    Tile b, h, q, kv;
    Tile first_q, first_kv;
};

/// The entries of a plan's row: `partial` has (tile index, bits), `full` has runs (tile index,
/// count).
struct PlanRow {
    Tile partial_begin, partial_end, full_begin, full_end;  ///< entries of the lists
};

/// Extent of a dimension of a Ref's whole array, i64.
Tile array_extent(const Ref& ref, int dim);

/// dot(a, b), with f32 products as the options say.
Tile product(const Options& options, const Tile& a, const Tile& b, const DotOptions& dot_options);

/// dot(weights, x) in which pairs that `attends` excludes contribute nothing, even where x is
/// infinite or NaN: the products of finite numbers, plus the effect of the others on the sum.
/// `options` apply to all products; weights and `attends` have the same shape. `positive`: no
/// weight is negative, so infinities of one sign do not give NaN.
Tile dot_of_attending(const Tile& weights, const Tile& x, const Tile& attends, bool positive,
                      DotOptions options);

/// x with rows of 0 for keys that `attends` [queries, keys] excludes for every query.
Tile rows_that_any_attends(const Tile& x, const Tile& attends);

/// x with 0 for infinities and NaN.
Tile finite(const Tile& x);

/// Does a tile hold an infinity or NaN?
Tile any_not_finite(const Tile& x);

/// A sum for each row in `sums`: 0 where all elements are finite, else NaN.
Tile zero_or_nan(const Tile& x, DType sums);

class Pairs {
  public:
    /// `extras` are the Refs that `add_extras` made.
    Pairs(const Options& options, const Features& features, std::span<const Ref> extras)
        : options_(options), features_(features), extras_(extras) {}

    /// The batch and head that mods see, from those of the program.
    Tile batch(Tile b) const { return from_origin(b, 0); }
    Tile head(Tile h) const { return from_origin(h, 1); }

    /// The number of keys for this program's batch, of `extent` in the arrays.
    Tile kv_length(Tile extent) const;

    /// Applies the score mod; `attends`: pairs whose captures must be in bounds, for the checked
    /// mode.
    Tile score(Tile scaled, const Place& at, const std::optional<Tile>& attends) const;
    /// Applies an additive score mod (`is_additive`) to scores that are not scaled yet; the result
    /// times the scale is the modified score.
    Tile unscaled_score(const Tile& score, const Place& at) const;
    /// Applies the mask mod.
    Tile mask(const Place& at, const std::optional<Tile>& attends) const;
    /// Is a probability kept, and not dropped?
    Tile is_kept(const Place& at) const;
    /// 1 / (1 - dropout) where a probability is kept, else 0; in `dtype`.
    Tile keep(const Place& at, DType dtype) const;
    /// The results of the score mod's derivative.
    std::vector<Tile> score_gradient(const ScoreDerivative& derivative, Tile scaled,
                                     const Place& at, Tile cotangent) const;

    /// Row `i` of the plan for a batch and head of the mods.
    PlanRow plan_row(Tile b, Tile h, Tile i) const;
    const Ref& extra(Extra::Place place) const { return extras_[place]; }

  private:
    Tile from_origin(Tile index, int dim) const;
    std::span<const Ref> captures(const InlinedMod& mod) const;
    std::vector<Tile> apply(const ir::Function& function, const std::vector<BlockLoad>& loads,
                            std::vector<Tile> arguments, const Place& at,
                            std::span<const Ref> refs) const;

    const Options& options_;
    const Features& features_;
    std::span<const Ref> extras_;
};

}  // namespace tilewright::attn::tiles
