// What attention's tile programs are specialised for, and the block ranges that a mask leaves.
#pragma once

#include <algorithm>
#include <bit>
#include <compare>
#include <cstdint>
#include <string>

#include "attention/spec.h"
#include "tilewright/lang.h"

namespace tilewright::attn::tiles {

/// How a forward program on a GPU keeps infinities and NaN of keys that none of its queries attends
/// to away from its results.
enum class Isolation : std::uint8_t {
    inside,  ///< a second form of its loops runs if results are infinite or NaN
    none,
    repair,  ///< it only recomputes what another program left infinite or NaN, with that second
             ///< form
};

/// Constants of one traced attention program. Everything else (batch, heads, lengths, strides)
/// comes with the call.
struct Options {
    double scale = 1;
    bool causal = false;             ///< kv <= q
    std::int64_t window_left = -1;   ///< q - left <= kv; -1: unbounded
    std::int64_t window_right = -1;  ///< kv <= q + right; -1: unbounded
    std::int64_t group = 1;          ///< query heads per kv head
    std::int64_t block_q = 64;
    std::int64_t block_k = 128;
    /// Keys of a block that a diagonal crosses; it divides block_k; 0: block_k. Smaller blocks
    /// cover fewer masked pairs.
    std::int64_t edge_k = 0;
    /// Forward on a GPU: keys of a program, a multiple of block_k, where the keys are split over
    /// programs because there are few queries; 0: all keys.
    std::int64_t split_k = 0;
    bool interpret = false;  ///< checked mode
    /// With a score mod, the scale is applied to the queries (forward) or keys (backward) instead
    /// of to each score.
    bool scale_operand = false;
    /// Backward on a GPU: dQ is in the order of accumulators, and additions to it are asynchronous.
    bool fragments = false;
    /// With `fragments`: one program per block of keys, and all add to one dQ in the order in which
    /// they come. Otherwise each program loops over blocks of keys and has a dQ of its own, each
    /// element of which one thread adds to in order: the same bits in every run.
    bool unordered = false;
    /// Backward on a GPU: a program of blocks of keys for dK and dV, which visits `step_q` queries
    /// at a time, and one of blocks of queries for dQ, which visits `step_k` keys. Two products
    /// more than one program for all, but none waits for memory, and warpgroups multiply.
    bool separate = false;
    std::int64_t step_q = 0, step_k = 0;
    /// Forward: not attention, but what the backward pass wants of rows with large scores
    /// (`row_sums`).
    bool row_sums = false;
    /// Backward: which gradients are wanted; the others are not computed.
    bool query_gradient = true, key_gradient = true, value_gradient = true;
    bool gpu = false;            ///< for a GPU
    bool narrow_inputs = false;  ///< f16 or bf16: soft caps may have more error (`reduced`)
    Products products = Products::ieee;
    /// Forward by warpgroups: scores have bounds so narrow that 2^(score - mark) needs no running
    /// maximum: neither it nor a sum of it times values of usual size overflows or vanishes.
    bool bounded = false;
    double mark = 0;  ///< with `bounded`
    /// Forward by warpgroups: the mod adds to the score (`is_additive`), so that the exponent
    /// scales their sum, and the mod what it adds.
    bool additive = false;
    /// One loop masks every block of keys, but skips the mask for blocks that need none.
    bool guarded = false;
    Isolation isolation = Isolation::inside;
    int num_warps = 0, num_stages = 0;  ///< on a GPU; 0: chosen by what a program holds

    /// Largest kv - q that attends: 0 when causal; -1: unbounded.
    std::int64_t right() const { return causal ? 0 : window_right; }
    auto operator<=>(const Options&) const = default;
};

/// What the blocks of programs on a GPU depend on.
struct GpuProblem {
    DType dtype = f32;
    std::int64_t heads = 1;  ///< batch times query heads
    std::int64_t head_dim = 0, value_dim = 0, query_length = 0, kv_length = 0;
    bool tested = false;  ///< pair by pair: by a mask as data or a mod that reads positions
    bool deterministic = true;
    int shared_bytes = 0;     ///< available to a thread block
    int multiprocessors = 0;  ///< 0: unknown
    bool splits = false;      ///< forward: keys may be split over programs
    bool wgmma = false;       ///< products by warpgroups, if nothing in the program rules them out
    bool hopper = false;      ///< where blocks that spill a little were timed and won
    Products products = Products::ieee;  ///< other than ieee: tensor cores multiply f32
};

/// Chooses blocks that fit a thread block's registers and shared memory, for the forward pass and
/// as the backward's starting point.
void use_gpu_blocks(Options& options, const GpuProblem& problem);
/// After `use_gpu_blocks`, for the forward pass: twice as many queries where there are enough
/// programs.
void use_gpu_queries(Options& options, const GpuProblem& problem);
/// Halves blocks until shared memory holds what a program of that pass certainly needs.
void fit_gpu_blocks(Options& options, const GpuProblem& problem, bool backward);
/// After `use_gpu_blocks`: blocks of keys and warps for programs that split the keys among them
/// (`decode`), with `rows` queries each. False, without changes, if the rows do not fit shared
/// memory.
bool use_gpu_decode_blocks(Options& options, const GpuProblem& problem, std::int64_t rows);
/// `Options::split_k` for these blocks: 0 unless the programs would leave half of the
/// multiprocessors idle.
std::int64_t split_of(const Options& options, const GpuProblem& problem);
/// Like `use_gpu_blocks`, with warps and stages, for the backward pass.
void use_gpu_backward_blocks(Options& options, const GpuProblem& problem);
/// Blocks of the separate programs of the backward pass. Returns why warpgroups do not take them;
/// empty: they do.
std::string use_separate_blocks(Options& options, const GpuProblem& problem);
/// Columns that warpgroups multiply for rows of so many: 64, 128 or 256.
inline std::int64_t padded_columns(std::int64_t columns) {
    constexpr std::uint64_t kLeast = 64;
    return static_cast<std::int64_t>(
        std::max(kLeast, std::bit_ceil(static_cast<std::uint64_t>(columns))));
}
/// Do the registers of a separate program hold sums of dK and dV at the same time?
inline bool sums_fit(std::int64_t head_dim, std::int64_t value_dim) {
    constexpr std::int64_t kMost = 128;
    return std::max(head_dim, value_dim) <= kMost;
}

/// Blocks [begin, end) of a loop; those in [full_begin, full_end) need no mask except for segments.
struct BlockRange {
    Tile begin, full_begin, full_end, end;
};

/// kv blocks that the queries [first, first + block_q) attend to among kv_length keys.
BlockRange kv_blocks(const Options& options, Tile first, Tile kv_length);
/// Query blocks that attend to the keys [first, first + block_k). `no_keys`: these keys may all lie
/// past kv_length.
BlockRange query_blocks(const Options& options, Tile first, Tile query_length, Tile kv_length,
                        bool no_keys);

/// Which pairs attend of i32 positions that broadcast against each other, but for segments.
Tile attends(const Options& options, const Tile& q, const Tile& kv, Tile kv_length);
/// bool [block_q, block_k]: which pairs attend. Positions are i32 rank-1 tiles; the ids are not
/// read when `segments` is false.
Tile attends(const Options& options, Tile query_positions, Tile kv_positions, Tile kv_length,
             bool segments, Tile query_ids, Tile kv_ids);

/// From here on an lse has no digits after the point, so no probabilities follow from it.
inline double largest_lse(DType sums) {
    return sums == f64 ? 0x1p53 : 0x1p24;
}
/// From here on probabilities computed from an f32 lse are off by 0.1% or more.
inline constexpr double kInexactLse = 0x1p14;

/// Type of statistics and sums: f64 for f64, else f32.
inline DType accumulator(DType dtype) {
    return dtype == f64 ? f64 : f32;
}

inline constexpr double kLog2E = 1.44269504088896340736;
inline constexpr double kLn2 = 0.69314718055994530942;

/// Probabilities of a row are exp2(score * factor - offset), where the offset is the largest score
/// times the factor. That product is rounded, which multiplies all probabilities by one common
/// factor, as long as that factor fits the type of the probabilities. Where it would not, a nearby
/// power of two takes the factor's place, with which nothing is rounded. Different scores then give
/// products that differ by at least 64 (f16: 16), so that only their order matters.
///
/// A row's running maximum is kept as its `mark`, from which the rest follows. Before the first
/// score it is the lowest finite number, so that a masked score of -inf minus it is -inf and not
/// NaN.
class Exponent {
  public:
    /// For scores times `unit` > 0; `sums` and `probabilities` are the types of these.
    Exponent(double unit, DType sums, DType probabilities);

    /// May scores be multiplied by `scale` here, as the unit? For a few scales above 0.69 the power
    /// of two would turn finite scores into infinite ones.
    static bool takes(double scale);

    Tile first_mark(std::int64_t rows) const;
    /// The mark after further scores, from the mark so far and the largest of them.
    Tile next_mark(const Tile& mark, const Tile& high) const;
    Tile factor(const Tile& mark) const;
    Tile offset(const Tile& mark) const;
    /// The largest score.
    Tile high(const Tile& mark) const;
    /// The factor for sums that were taken with one mark when a later mark replaces it.
    Tile decay(const Tile& mark, const Tile& later, bool approx) const;

  private:
    Tile value(double x) const { return constant(x, sums_); }
    Tile is_large(const Tile& high) const;

    DType sums_;
    double factor_;
    /// The power of two is the next one above the factor, and at most 1: marks are then offsets,
    /// which grow with the scores. Otherwise it is the one below, so that offsets are finite, and
    /// marks are scores.
    bool marks_offsets_;
    double power_, largest_;  ///< largest offset that may be rounded
};

/// Does the exponent of a program scale its scores?
inline bool scales_in_exponent(const Options& options, bool score_mod) {
    // The factor must be positive, and a mod needs scaled scores.
    return !score_mod && options.scale > 0 && Exponent::takes(options.scale);
}

}  // namespace tilewright::attn::tiles
