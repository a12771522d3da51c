// Block ranges and element masks of causal, window and segment attention.
#include "attention/tiles/options.h"

#include <algorithm>
#include <cmath>

namespace tilewright::attn::tiles {

// Positions are never negative and block sizes are positive, so `/` rounds down.

void use_gpu_blocks(Options& options, std::int64_t widest_row) {
    options.block_q = widest_row > 256 ? 32 : 64;
    options.block_k = widest_row > 512 ? 16 : widest_row > 256 ? 32 : 64;
}

void use_gpu_backward_blocks(Options& options, std::int64_t widest_row, DType dtype) {
    if (size_of(dtype) >= 4 && widest_row > 128)
        options.block_k = std::min<std::int64_t>(options.block_k, 32);
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

BlockRange query_blocks(const Options& options, Tile first, Tile query_length, Tile kv_length) {
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
    full_begin = minimum(full_begin, end);
    full_end = maximum(full_end, full_begin);
    // Keys past the end must be masked in every block.
    const Tile ragged = last >= kv_length;
    return {begin, where(ragged, end, full_begin), where(ragged, end, full_end), end};
}

Tile attends(const Options& options, Tile query_positions, Tile kv_positions, Tile kv_length,
             bool segments, Tile query_ids, Tile kv_ids) {
    const Tile q = expand_dims(query_positions, 1), kv = expand_dims(kv_positions, 0);
    Tile mask = kv < kv_length.to(i32);
    if (options.right() >= 0) mask = mask & (kv <= q + options.right());
    if (options.window_left >= 0) mask = mask & (kv >= q - options.window_left);
    if (segments) mask = mask & (expand_dims(query_ids, 1) == expand_dims(kv_ids, 0));
    return broadcast_to(mask, {options.block_q, options.block_k});
}

Exponent::Exponent(double factor, DType sums, DType probabilities)
    : sums_(sums),
      factor_(factor),
      power_(std::exp2(std::ceil(std::log2(factor)))),
      // Half an ulp of it is 64, or 8 where 2^64 is no number.
      largest_(probabilities == f64   ? 0x1p60
               : probabilities == f16 ? 0x1p28
                                      : 0x1p30) {}

Tile Exponent::offset(const Tile& high) const {
    return high * where(abs(high) > largest_ / factor_, value(power_), value(factor_));
}

Tile Exponent::factor(const Tile& offset) const {
    return where(abs(offset) > largest_, value(power_), value(factor_));
}

Tile Exponent::high(const Tile& offset) const {
    return offset * where(abs(offset) > largest_, value(1 / power_), value(1 / factor_));
}

}  // namespace tilewright::attn::tiles
