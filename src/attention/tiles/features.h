// What attention programs are compiled for besides sizes: mods, mask plans, dropout.
#pragma once

#include <compare>
#include <memory>
#include <string>
#include <vector>

#include "attention/tiles/options.h"
#include "ir/function.h"
#include "ir/passes/differentiate.h"
#include "tilewright/run.h"

namespace tilewright::attn::tiles {

/// What one index of a load in a mod is, where that is plain: then it takes every value once.
enum class Coordinate : std::uint8_t { other, batch, head, query, key, constant };

/// A load whose indices are all plain, of queries or keys among them: programs read a block of the
/// array instead of gathering element by element.
struct BlockLoad {
    struct Index {
        Coordinate coordinate = Coordinate::other;
        std::int64_t constant = 0;
    };
    std::size_t ref = 0;  ///< among the Ref parameters
    std::vector<Index> indices;
};

/// A mod that is inlined into a program; parameters as mod/traced.h says, with one scalar for each
/// block load in front of the Refs.
struct InlinedMod {
    std::shared_ptr<const ir::Function> function;  ///< null: none
    std::vector<BlockLoad> loads = {};
    std::string text = {};                                ///< its key
    std::shared_ptr<const ir::Function> derivative = {};  ///< the caller's own, or none
    std::vector<ir::GatherGradient> gathers = {};         ///< of it

    explicit operator bool() const { return function != nullptr; }
    std::size_t captures() const;
};

/// A gather of the score mod that has a gradient.
struct ScoreGather {
    std::size_t buffer = 0;            ///< among ScoreDerivative::buffers
    std::vector<std::size_t> indices;  ///< results of the derivative, one per dimension
    std::size_t value = 0;             ///< result that is to be added there
    std::vector<Coordinate> coordinates;
};

/// The gradient of one captured array: parts (copies, dimensions of the array...), each the sum of
/// those programs that would else meet in an element.
struct GradientBuffer {
    std::size_t capture = 0;  ///< among the captures of the score mod
    std::size_t rank = 0;     ///< of the captured array
    /// Programs of different batches, heads, or blocks of keys never meet: they share a copy.
    bool by_batch = false, by_head = false, by_key = false;

    std::int64_t copies(std::int64_t batch, std::int64_t heads, std::int64_t splits) const {
        return (by_batch ? 1 : batch) * (by_head ? 1 : heads) * (by_key ? 1 : splits);
    }
};

/// The derivative of the score mod: parameters as the mod's with the cotangent after kv.
struct ScoreDerivative {
    std::shared_ptr<const ir::Function> function;
    std::vector<BlockLoad> loads;  ///< as in InlinedMod
    bool is_identity = false;      ///< the score's gradient is the cotangent
    std::vector<ScoreGather> gathers;
    std::vector<GradientBuffer> buffers;

    /// What distinguishes compiled programs.
    std::string key() const;
};

/// Size of the problem, with which indices are known to stay inside their arrays.
struct ProblemSize {
    std::int64_t batch = 1, heads = 1, queries = 1, keys = 1;
    auto operator<=>(const ProblemSize&) const = default;
};

/// The mod, whose printed form is `text`, with its plain loads as block loads; worked out once.
/// `shapes`: of every capture.
InlinedMod with_block_loads(const std::string& text, const ir::Function& function, bool is_score,
                            const std::vector<Tensor::Dims>& shapes, const ProblemSize& size);

/// Differentiates the score mod by the score and the chosen captures. `shapes`: of every capture.
ScoreDerivative differentiate_score(const InlinedMod& score, const std::vector<bool>& chosen,
                                    const std::vector<Tensor::Dims>& shapes,
                                    const ProblemSize& size);

/// Up to here f32 holds positions and what mods usually add to them.
inline constexpr std::int64_t kShortPositions = 1 << 23;

struct Features {
    bool segments = false;
    bool plan = false;            ///< visits the tiles of a mask plan instead of a range
    bool lengths = false;         ///< keys end at a length of each batch
    bool sinks = false;           ///< one more logit per head
    double dropout = 0;           ///< share of the probabilities dropped
    bool long_positions = false;  ///< they may pass kShortPositions
    /// Backward: lse is that of scores minus a shift of their row, which is not 0 where scores are
    /// large.
    bool shifted = false;
    InlinedMod score, mask;

    /// May a pair of a program be masked?
    bool masks(const Options& options) const {
        return segments || plan || lengths || mask || options.right() >= 0 ||
               options.window_left >= 0;
    }
    /// May a block of keys that a program visits hold some that none of its queries attends? Calls
    /// end keys where causal does, so that its last blocks have none.
    bool hides_keys(const Options& options) const {
        return segments || plan || lengths || mask || options.right() > 0 ||
               options.window_left >= 0 ||
               (options.right() == 0 && options.block_q % options.block_k != 0);
    }
    bool positions() const { return score || mask || dropout > 0; }
    /// What distinguishes compiled programs.
    std::string key() const;
};

/// The inputs that follow the arguments of forward, backward and decode, in this order; those not
/// used are absent. The captures of the score mod and of the mask mod come last.
struct Extra {
    enum Place : std::uint8_t {
        origin,  ///< i64 (4): batch and head of the first program; plan rows per batch, per head
        seed,    ///< u64 ()
        kv_lengths,  ///< i32 or i64 (batches of this call)
        headers,     ///< of the plan: mask/plan.h
        partial,
        full,
        bits,   ///< bool (tiles, block_q, block_k)
        shift,  ///< (batch, query heads, queries) of this call
        count,
    };
};

/// Appends the specs and names of these inputs.
void add_extras(const Features& features, CallOptions& options, std::vector<std::string>& names);
/// Names of their own for the Refs of a kernel: captures of mods may have any, also one twice.
std::vector<std::string> distinct(std::vector<std::string> names);

/// Number of inputs that `add_extras` appends.
std::size_t num_extras(const Features& features);

}  // namespace tilewright::attn::tiles
