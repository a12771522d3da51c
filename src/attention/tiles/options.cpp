// The choice of blocks on GPUs; block ranges and element masks of causal, window and segment
// attention.
#include "attention/tiles/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "support/integer.h"

namespace tilewright::attn::tiles {

// Positions are never negative and block sizes are positive, so `/` rounds down.

namespace {

/// Halves blocks until shared memory holds `rows` query tiles, as many key tiles, and `pair_bytes`
/// for each pair.
void fit_gpu_blocks(Options& options, const GpuProblem& problem, int rows, int pair_bytes) {
    constexpr std::int64_t kLeast = 4, kReductions = 1024;
    const auto widest = static_cast<std::uint64_t>(std::max(problem.head_dim, problem.value_dim));
    const auto row_bytes =
        static_cast<std::int64_t>(std::bit_ceil(widest)) * size_of(problem.dtype);
    std::int64_t &q = options.block_q, &k = options.block_k;
    while (rows * (q + k) * row_bytes + pair_bytes * q * k + kReductions > problem.shared_bytes &&
           std::max(q, k) > kLeast) {
        (q >= k ? q : k) /= 2;
    }
}

/// Backward blocks for f32, f64 and long rows. Eight warps, since the sums of dK and dV fill the
/// registers of four.
void use_blocks_of_large_rows(Options& options, const GpuProblem& problem) {
    const int size = size_of(problem.dtype);
    const std::int64_t row_bytes = std::max(problem.head_dim, problem.value_dim) * size;
    options.num_warps = 8;
    options.block_q = problem.dtype == f64 && row_bytes > 512 ? 16 : row_bytes > 256 ? 32 : 64;
    options.block_k = problem.dtype == f64 || row_bytes > 512 ? 16 : 32;
    if (problem.dtype == f32 && row_bytes <= 512) {
        // Each element of dQ is added to half as often; scores of mods take registers.
        options.block_q = options.block_k = 64;
        const bool few = row_bytes <= 256 && problem.products != Products::tf32 && !problem.tested;
        if (few) options.num_warps = 4;
    }
    // Q, K, V and dO; P and dS; partial sums exchanged between warps.
    fit_gpu_blocks(options, problem, 2, 2 * size + 6);
}

/// f32 with rows of up to 128 columns?
bool is_short_f32(const GpuProblem& problem) {
    return problem.dtype == f32 && std::max(problem.head_dim, problem.value_dim) <= 128;
}

/// Forward blocks for such problems: as large as registers allow while programs fill the GPU.
void use_f32_blocks(Options& options, const GpuProblem& problem) {
    constexpr std::int64_t kLeast = 32;
    // Operands of tensor cores take registers: 64 keys of 128 columns need eight warps.
    const bool is_large =
        problem.products != Products::ieee && std::max(problem.head_dim, problem.value_dim) > 64;
    options.block_q = is_large ? 128 : 64;
    options.block_k = 64;
    options.num_warps = is_large ? 8 : 4;
    // Fewer queries if one block holds all of them, or if all programs run at the same time: then
    // the call takes as long as the queries of one program. Where keys are split, programs fill the
    // GPU anyway.
    const bool splits = split_of(options, problem) > 0;
    const auto suffices = [&](std::int64_t queries) {
        return queries >= problem.query_length ||
               (!splits &&
                problem.heads * ceil_div(problem.query_length, queries) <= problem.multiprocessors);
    };
    while (options.block_q > kLeast && suffices(options.block_q / 2)) options.block_q /= 2;
}

/// Two warpgroups of 64 queries each, with as many keys as their registers hold scores for.
bool use_warpgroup_blocks(Options& options, const GpuProblem& problem) {
    constexpr std::int64_t kQueries = 128;
    const auto fits = [](std::int64_t dim) { return dim == 64 || dim == 128 || dim == 256; };
    if (!problem.wgmma || size_of(problem.dtype) != 2 || problem.query_length <= kQueries / 2 ||
        !fits(problem.head_dim) || !fits(problem.value_dim)) {
        return false;
    }
    options.block_q = kQueries;
    options.block_k = std::max(problem.head_dim, problem.value_dim) > 128 ? 64 : 128;
    options.guarded = true;
    return true;
}

}  // namespace

void fit_gpu_blocks(Options& options, const GpuProblem& problem, bool backward) {
    const int size = size_of(problem.dtype);
    fit_gpu_blocks(options, problem, backward ? 2 : 1, backward ? 2 * size + 6 : size + 4);
}

void use_gpu_blocks(Options& options, const GpuProblem& problem) {
    options.gpu = true;
    options.guarded = false;
    if (use_warpgroup_blocks(options, problem)) return;
    const int size = size_of(problem.dtype);
    const std::int64_t row_bytes = std::max(problem.head_dim, problem.value_dim) * size;
    if (is_short_f32(problem)) {
        use_f32_blocks(options, problem);
    } else {
        // Tensor cores need 16 rows for each of four warps.
        options.block_q = row_bytes > 256 ? 32 : 64;
        options.block_k = row_bytes > 512 ? 16 : row_bytes > 256 ? 32 : 64;
    }
    if (problem.dtype == f64) options.block_k = std::min<std::int64_t>(options.block_k, 16);
    // Q, then K and V one after the other; probabilities.
    fit_gpu_blocks(options, problem, 1, size + 4);
}

void use_gpu_queries(Options& options, const GpuProblem& problem) {
    constexpr std::int64_t kPrograms = 128, kQueries = 64;
    // Tensor cores work best with 32 rows for each of four warps, if registers hold them. With 128
    // columns up to 352 bytes are spilled; only on Hopper GPUs was that timed and faster.
    const std::int64_t most_columns = problem.hopper ? 128 : 64;
    const std::int64_t programs = problem.heads * (problem.query_length / (2 * kQueries));
    if (size_of(problem.dtype) == 2 && programs >= kPrograms && options.block_q == kQueries &&
        std::max(problem.head_dim, problem.value_dim) <= most_columns) {
        options.block_q = 2 * kQueries;
    }
}

std::int64_t split_of(const Options& options, const GpuProblem& problem) {
    constexpr std::int64_t kLeast = 512;  // keys, so that combining costs little
    const std::int64_t programs = problem.heads * ceil_div(problem.query_length, options.block_q);
    if (!problem.splits || 2 * programs > problem.multiprocessors) return 0;
    std::int64_t keys = kLeast;
    const auto fills = [&](std::int64_t count) {
        return programs * ceil_div(problem.kv_length, count) >= problem.multiprocessors;
    };
    while (fills(2 * keys)) keys *= 2;
    return 2 * keys <= problem.kv_length ? keys : 0;
}

bool use_gpu_decode_blocks(Options& options, const GpuProblem& problem, std::int64_t rows) {
    constexpr std::int64_t kLeast = 8, kReductions = 1024, kReductionsOfRow = 40;
    const std::int64_t widest = std::max(problem.head_dim, problem.value_dim);
    const std::int64_t padded_rows = std::bit_ceil(static_cast<std::uint64_t>(rows));
    const std::int64_t padded = std::bit_ceil(static_cast<std::uint64_t>(widest));
    const int size = size_of(problem.dtype);
    // A program has few queries and waits for memory, so it keeps 32 KiB of keys in flight.
    std::int64_t keys = options.block_k;
    if (is_short_f32(problem)) keys = widest > 64 ? 64 : 128;
    // Queries, then K and V one after the other; probabilities; sums over rows.
    const auto fits = [&](std::int64_t block) {
        return (padded_rows + block) * padded * size + padded_rows * block * size + kReductions +
                   padded_rows * kReductionsOfRow <=
               problem.shared_bytes;
    };
    while (keys > kLeast && !fits(keys)) keys /= 2;
    if (!fits(keys)) return false;
    options.block_k = keys;
    if (is_short_f32(problem)) options.num_warps = 8;
    return true;
}

// Blocks that spill are for Hopper GPUs, where they were timed and are faster all the same.
void use_gpu_backward_blocks(Options& options, const GpuProblem& problem) {
    // Shared memory of a program with 128 keys of 128 columns, or with 128 queries and keys of 64.
    constexpr int kSharedOfLargeBlocks = 160 * 1024;
    const std::int64_t widest = std::max(problem.head_dim, problem.value_dim);
    options.gpu = true;
    if (size_of(problem.dtype) != 2 || widest > 128)
        return use_blocks_of_large_rows(options, problem);
    const bool has_room = problem.shared_bytes >= kSharedOfLargeBlocks;
    const bool long_keys = problem.kv_length >= 128, long_queries = problem.query_length >= 128;
    const bool is_narrow = widest <= 64;
    if (problem.head_dim % 8 != 0) {
        // Twice the products for each block of queries that is read.
        if (is_narrow && long_keys && !problem.tested) options.block_k = 128;
    } else if (problem.deterministic) {
        // Each element of dQ is added to once per block of keys, in distant memory.
        options.num_warps = 8;
        if (!long_keys || !(is_narrow || (has_room && problem.hopper))) return;
        options.block_k = 128;
        if (!is_narrow || problem.tested || !long_queries || !problem.hopper) return;
        options.block_q = 128;
        options.num_stages = 1;
    } else if (!problem.tested && is_narrow) {
        if (long_queries && has_room) options.block_q = 128;
        options.num_stages = 1;  // so that two programs fit a multiprocessor
    } else if (!is_narrow && !problem.hopper) {
        options.num_warps = 8;
    } else if (!problem.tested && long_keys && has_room) {
        options.block_k = 128;
        options.num_warps = 8;
    }
}

std::string use_separate_blocks(Options& options, const GpuProblem& problem) {
    constexpr std::int64_t kRows = 128;  // two warpgroups of 64
    constexpr std::int64_t kLeastColumns = 32, kMostColumns = 256;
    const auto [narrow, wide] = std::minmax(problem.head_dim, problem.value_dim);
    if (!problem.wgmma) return "the GPU is not sm_90a";
    if (size_of(problem.dtype) != 2) {
        return fmt::format("inputs are {}, not f16 or bf16", name(problem.dtype));
    }
    if (narrow < kLeastColumns || wide > kMostColumns || narrow % 8 != 0 || wide % 8 != 0) {
        return fmt::format("heads have {} columns, not a multiple of 8 from {} to {}",
                           narrow < kLeastColumns || narrow % 8 != 0 ? narrow : wide, kLeastColumns,
                           kMostColumns);
    }
    if (problem.query_length <= kRows / 2) {
        return fmt::format("there are {} queries, not more than {}", problem.query_length,
                           kRows / 2);
    }
    options.gpu = options.guarded = options.separate = true;
    options.block_q = options.block_k = kRows;
    // Registers and shared memory hold narrower steps beside sums of 256 columns.
    options.step_q = sums_fit(problem.head_dim, problem.value_dim) ? 64 : 32;
    options.step_k = sums_fit(problem.head_dim, problem.value_dim) ? 128 : 32;
    return {};
}

BlockRange kv_blocks(const Options& options, Tile first, Tile kv_length) {
    const std::int64_t block = options.block_k, left = options.window_left;
    const Tile last = first + (options.block_q - 1);
    Tile begin = constant(0, i64), full_begin = begin;
    Tile end = kv_length, full_end = kv_length;  // in keys
    if (options.right() >= 0) {
        end = minimum(end, last + (options.right() + 1));
        full_end = minimum(full_end, first + (options.right() + 1));
    }
    if (left >= 0) {
        begin = maximum(first - left, 0) / block;
        full_begin = cdiv(maximum(last - left, 0), block);
    }
    end = maximum(cdiv(end, block), begin);
    full_begin = minimum(full_begin, end);
    full_end = maximum(full_end / block, full_begin);
    return {begin, full_begin, full_end, end};
}

BlockRange query_blocks(const Options& options, Tile first, Tile query_length, Tile kv_length,
                        bool no_keys) {
    const std::int64_t block = options.block_q, left = options.window_left;
    const Tile last = first + (options.block_k - 1);
    Tile begin = constant(0, i64), full_begin = begin;
    Tile end = cdiv(query_length, block), full_end = end;  // rows past the end have P = 0
    if (options.right() >= 0) {
        begin = maximum(first - options.right(), 0) / block;
        full_begin = cdiv(maximum(last - options.right(), 0), block);
    }
    if (left >= 0) {
        end = minimum(end, (last + left) / block + 1);
        full_end = minimum(full_end, (first + (left + 1)) / block);
    }
    end = maximum(end, begin);
    if (no_keys) end = where(first >= kv_length, begin, end);
    full_begin = minimum(full_begin, end);
    full_end = maximum(full_end, full_begin);
    // Keys past the end must be masked in every block.
    const Tile ragged = last >= kv_length;
    return {begin, where(ragged, end, full_begin), where(ragged, end, full_end), end};
}

Tile attends(const Options& options, const Tile& q, const Tile& kv, Tile kv_length) {
    Tile mask = kv < kv_length.to(i32);
    if (options.right() >= 0) mask = mask & (kv <= q + options.right());
    if (options.window_left >= 0) mask = mask & (kv >= q - options.window_left);
    return mask;
}

Tile attends(const Options& options, Tile query_positions, Tile kv_positions, Tile kv_length,
             bool segments, Tile query_ids, Tile kv_ids) {
    Tile mask =
        attends(options, expand_dims(query_positions, 1), expand_dims(kv_positions, 0), kv_length);
    if (segments) mask = mask & (expand_dims(query_ids, 1) == expand_dims(kv_ids, 0));
    return broadcast_to(mask, {options.block_q, options.block_k});
}

bool Exponent::takes(double scale) {
    const double factor = scale * kLog2E;
    return factor <= 1 || std::exp2(std::floor(std::log2(factor))) <= scale;
}

Exponent::Exponent(double unit, DType sums, DType probabilities)
    : sums_(sums),
      factor_(unit * kLog2E),
      marks_offsets_(factor_ <= 1),
      power_(std::exp2(marks_offsets_ ? std::ceil(std::log2(factor_))
                                      : std::floor(std::log2(factor_)))),
      // Half an ulp of it is 64, or 8 where 2^64 is not representable.
      largest_(probabilities == f64   ? 0x1p60
               : probabilities == f16 ? 0x1p28
                                      : 0x1p30) {}

Tile Exponent::is_large(const Tile& high) const {
    return abs(high) > largest_ / factor_;
}

Tile Exponent::first_mark(std::int64_t rows) const {
    const double lowest = sums_ == f64 ? -std::numeric_limits<double>::max()
                                       : -static_cast<double>(std::numeric_limits<float>::max());
    return full({rows}, marks_offsets_ ? lowest * power_ : lowest, sums_);
}

Tile Exponent::next_mark(const Tile& mark, const Tile& high) const {
    if (!marks_offsets_) return maximum(mark, high);
    return maximum(mark, high * where(is_large(high), value(power_), value(factor_)));
}

Tile Exponent::factor(const Tile& mark) const {
    const Tile large = marks_offsets_ ? abs(mark) > largest_ : is_large(mark);
    return where(large, value(power_), value(factor_));
}

Tile Exponent::offset(const Tile& mark) const {
    return marks_offsets_ ? mark : mark * factor(mark);
}

Tile Exponent::high(const Tile& mark) const {
    if (!marks_offsets_) return mark;
    return mark * where(abs(mark) > largest_, value(1 / power_), value(1 / factor_));
}

Tile Exponent::decay(const Tile& mark, const Tile& later, bool approx) const {
    if (marks_offsets_) return exp2(mark - later, approx);
    // A large score has a smaller offset than the usual factor would give it. So unless both marks
    // are large, their products with that factor are subtracted; these may be infinite.
    return exp2(where(is_large(mark) & is_large(later), (mark - later) * power_,
                      mark * factor_ - later * factor_),
                approx);
}

}  // namespace tilewright::attn::tiles
