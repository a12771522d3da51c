// What attention programs are compiled for, apart from sizes: mods, mask plans, dropout.
#pragma once

#include <compare>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/tiles/options.h"
#include "ir/function.h"
#include "ir/passes/differentiate.h"
#include "tilewright/run.h"

namespace tilewright::attn::tiles {

/// What one index of a load in a mod is, if it is plain, so that it takes every value exactly once.
enum class Coordinate : std::uint8_t { other, batch, head, query, key, constant };

/// A load whose indices are all plain, including queries or keys: programs read a block of the
/// array instead of gathering element by element.
struct BlockLoad {
    struct Index {
        Coordinate coordinate = Coordinate::other;
        std::int64_t constant = 0;
    };
    std::size_t ref = 0;  ///< number of the Ref parameter
    std::vector<Index> indices;
};

/// A mod that is inlined into a program, with the parameters that mod/traced.h describes and one
/// scalar for each block load before the Refs.
struct InlinedMod {
    std::shared_ptr<const ir::Function> function;  ///< null: none
    std::vector<BlockLoad> loads = {};
    std::string text = {};                                ///< identifies the mod in keys
    std::shared_ptr<const ir::Function> derivative = {};  ///< written by the caller; null: none
    std::vector<ir::GatherGradient> gathers = {};         ///< gathers of that derivative

    explicit operator bool() const { return function != nullptr; }
    std::size_t captures() const;
};

/// A gather of the score mod that has a gradient.
struct ScoreGather {
    std::size_t buffer = 0;            ///< index into ScoreDerivative::buffers
    std::vector<std::size_t> indices;  ///< results of the derivative, one per dimension
    std::size_t value = 0;             ///< the result to add there
    std::vector<Coordinate> coordinates;
};

/// The gradient of one captured array: (copies, dimensions of the array...), with a copy for each
/// of the programs that would otherwise add to the same elements.
struct GradientBuffer {
    std::size_t capture = 0;  ///< index among the captures of the score mod
    std::size_t rank = 0;     ///< rank of the captured array
    /// Programs of different batches, heads or blocks of keys add to different elements, so they
    /// share a copy.
    bool by_batch = false, by_head = false, by_key = false;

    std::int64_t copies(std::int64_t batch, std::int64_t heads, std::int64_t splits) const {
        return (by_batch ? 1 : batch) * (by_head ? 1 : heads) * (by_key ? 1 : splits);
    }
};

/// The derivative of the score mod; it has the mod's parameters, with the cotangent after kv.
struct ScoreDerivative {
    std::shared_ptr<const ir::Function> function;
    std::vector<BlockLoad> loads;  ///< as in InlinedMod
    bool is_identity = false;      ///< the score's gradient is the cotangent
    std::vector<ScoreGather> gathers;
    std::vector<GradientBuffer> buffers;

    /// A key that distinguishes compiled programs.
    std::string key() const;
};

/// Sizes from which it follows that indices stay inside their arrays.
struct ProblemSize {
    std::int64_t batch = 1, heads = 1, queries = 1, keys = 1;
    auto operator<=>(const ProblemSize&) const = default;
};

/// The mod, whose printed form is `text`, with its plain loads as block loads; cached. `shapes` has
/// the shape of every capture.
InlinedMod with_block_loads(const std::string& text, const ir::Function& function, bool is_score,
                            const std::vector<Tensor::Dims>& shapes, const ProblemSize& size);

/// Differentiates the score mod with respect to the score and the chosen captures. `shapes` has the
/// shape of every capture.
ScoreDerivative differentiate_score(const InlinedMod& score, const std::vector<bool>& chosen,
                                    const std::vector<Tensor::Dims>& shapes,
                                    const ProblemSize& size);

/// Up to here f32 represents positions exactly, and what mods usually add to them.
inline constexpr std::int64_t kShortPositions = 1 << 23;

/// Scores that a mod can give.
struct ScoreRange {
    double low = 0, high = 0;
};

struct Features {
    bool segments = false;
    bool plan = false;            ///< visits the tiles of a mask plan instead of a range
    bool lengths = false;         ///< each batch has a length at which its keys end
    bool sinks = false;           ///< one more logit per head
    double dropout = 0;           ///< fraction of the probabilities dropped
    bool long_positions = false;  ///< positions may exceed kShortPositions
    /// Backward: lse is that of scores minus a shift for each row, which is not 0 where scores are
    /// large.
    bool shifted = false;
    InlinedMod score, mask;

    /// May any pair of a program be masked?
    bool masks(const Options& options) const {
        return segments || plan || lengths || mask || options.right() >= 0 ||
               options.window_left >= 0;
    }
    /// May a program visit a block with keys that none of its queries attends to? With causal,
    /// calls drop the keys past the diagonal, so the last blocks have none.
    bool hides_keys(const Options& options) const {
        return segments || plan || lengths || mask || options.right() > 0 ||
               options.window_left >= 0 ||
               (options.right() == 0 && options.block_q % options.block_k != 0);
    }
    bool positions() const { return score || mask || dropout > 0; }
    /// A key that distinguishes compiled programs.
    std::string key() const;
};

/// The inputs that follow the arguments of forward, backward and decode, in this order; unused ones
/// are absent. The captures of the score mod and of the mask mod come last.
struct Extra {
    enum Place : std::uint8_t {
        origin,  ///< i64 (4): batch and head of the first program; plan rows per batch, per head
        seed,    ///< u64 ()
        kv_lengths,  ///< i32 or i64 (batches of this call)
        headers,     ///< of the plan (mask/plan.h)
        partial,
        full,
        bits,        ///< bool (tiles, block_q, block_k)
        shift,       ///< (batch, query heads, queries) of this call
        not_finite,  ///< bool (batch, query heads, blocks of queries), of `backward_preprocess`
        count,
    };
};

/// The finite bounds of a score mod's results, NaN aside, whatever its score and positions are, if
/// it reads no arrays and has such bounds: of a soft cap, for example.
std::optional<ScoreRange> score_range(const InlinedMod& score);

/// Does a score mod do nothing but add something to the score that is finite after a division by
/// `scale`?
bool is_additive(const InlinedMod& score, double scale);
/// Does the mod, if there is one, read arrays only at places that do not depend on positions?
bool reads_by_head(const InlinedMod& score);

/// Appends the specs and names of these inputs; `looks`: there is `Extra::not_finite`.
void add_extras(const Features& features, CallOptions& options, std::vector<std::string>& names,
                bool looks = false);
/// Makes the names of a kernel's Refs distinct: captures of mods may have any names, even equal
/// ones.
std::vector<std::string> distinct(std::vector<std::string> names);

/// Number of inputs that `add_extras` appends.
std::size_t num_extras(const Features& features);

}  // namespace tilewright::attn::tiles
