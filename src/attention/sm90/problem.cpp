// What forward and backward check of their inputs, and the texts both kernels are generated with.
#include "attention/sm90/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tilewright::attn::sm90 {
namespace {

constexpr const char* kNoScoreMod = R"(// Generated: no score mod.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace tw::attn {

struct ModArguments {
    u64 words[1];
};

struct ScoreMod {
    const ModArguments& arguments;
    float scale;
    struct Columns {};
    TW_DEVICE void enter_tile(int, int) {}
    TW_DEVICE void enter_rows(int) {}
    TW_DEVICE void enter_block(int) {}
    TW_DEVICE Columns columns_at(int) const { return {}; }
    TW_DEVICE float exponent(float score, int, int, int, Columns, float) const { return score; }
    TW_DEVICE float modified(float score, int, int, int, Columns) const { return score; }
    static constexpr int kGathers = 0;
    TW_DEVICE float gradient(float, int, int, int, Columns, float grad) { return grad; }
};

}  // namespace tw::attn
)";

void check_mask(const DeviceMask& mask, const ProblemInputs& inputs) {
    const auto [batch, heads, q_len, dim] = inputs.query.shape;
    require(mask.batches == 1 || mask.batches == batch, "mask", "one batch or the query's",
            mask.batches);
    require(mask.heads == 1 || mask.heads == heads, "mask", "one head or the query's", mask.heads);
    require(mask.q_len == q_len, "mask", "as many rows as the query", mask.q_len);
    require(mask.kv_len == inputs.key.shape[2], "mask", "as many columns as the key has rows",
            mask.kv_len);
    require(!inputs.lower_diagonal && !inputs.upper_diagonal, "mask",
            "lists that hold the diagonals too", "diagonals beside lists");
}

void check_segments(const ProblemInputs& inputs) {
    const bool packed = inputs.sequences > 0;
    require((inputs.q_segments != 0) == (inputs.kv_segments != 0), "kv_segments",
            "ids for keys as for queries", inputs.kv_segments);
    require(inputs.q_segments % 4 == 0 && inputs.kv_segments % 4 == 0, "segments",
            "addresses that are multiples of 4", inputs.q_segments);
    require(packed == (inputs.q_starts != 0) && packed == (inputs.kv_starts != 0), "q_starts",
            "starts of queries and keys with a number of sequences", inputs.sequences);
    require(!packed || inputs.query.shape[0] == 1, "query", "a batch of 1 of packed sequences",
            inputs.query.shape[0]);
    require(!(packed || inputs.q_segments != 0) || !inputs.mask.has_value(), "mask",
            "lists without segments and packed sequences", "both");
    require(inputs.kv_lengths == 0
                ? inputs.length_bytes == 0
                : (inputs.length_bytes == 4 || inputs.length_bytes == 8) &&
                      inputs.kv_lengths % static_cast<unsigned>(inputs.length_bytes) == 0,
            "kv_lengths", "integers of 4 or 8 bytes at a multiple of that", inputs.kv_lengths);
    require(inputs.dropout >= 0 && inputs.dropout < 1, "dropout", "a share in [0, 1)",
            inputs.dropout);
}

}  // namespace

void check_problem(const ProblemInputs& inputs, ProblemDesc& desc) {
    require(inputs.dtype == DType::bf16 || inputs.dtype == DType::f16, "query",
            "bf16 or f16 elements", name(inputs.dtype));
    const auto [batch, heads, q_len, dim] = inputs.query.shape;
    const std::int64_t kv_heads = inputs.key.shape[1], kv_len = inputs.key.shape[2];
    const std::int64_t value_dim = inputs.value.shape[3];
    constexpr std::int64_t kMaxInt = 1 << 29;  // sums of two positions stay in an int
    require(batch >= 0 && heads >= 1, "query", "at least one head", heads);
    require(kv_heads >= 1 && heads % kv_heads == 0, "key", "a number of heads that divides query's",
            kv_heads);
    require(dim >= 8 && dim <= 256 && dim % 8 == 0, "query",
            "a head dimension that is a multiple of 8 up to 256", dim);
    require(value_dim >= 8 && value_dim <= 256 && value_dim % 8 == 0, "value",
            "a head dimension that is a multiple of 8 up to 256", value_dim);
    require(kv_len >= 0 && kv_len <= kMaxInt, "key", "at most 2^29 rows", kv_len);
    require(q_len >= 0 && q_len <= kMaxInt, "query", "at most 2^29 rows", q_len);
    const std::int64_t tiles = batch * heads * ceil_div(std::max(q_len, kv_len), 64);
    require(tiles <= kMaxInt, "query", "at most 2^29 tiles of 64 rows", tiles);
    require(std::isfinite(inputs.scale), "scale", "a finite number", inputs.scale);
    check_tensor(inputs.query, "query", {batch, heads, q_len, dim});
    check_tensor(inputs.key, "key", {batch, kv_heads, kv_len, dim});
    check_tensor(inputs.value, "value", {batch, kv_heads, kv_len, value_dim});
    check_tensor(inputs.out, "out", {batch, heads, q_len, value_dim});
    require(inputs.lse != 0 && inputs.lse % 4 == 0, "lse", "an address that is a multiple of 4",
            inputs.lse);
    require(inputs.sinks % 4 == 0, "sinks", "an address that is a multiple of 4", inputs.sinks);
    if (inputs.mask.has_value()) check_mask(*inputs.mask, inputs);
    check_segments(inputs);

    desc.dtype = inputs.dtype;
    desc.query_dim = static_cast<int>(dim);
    desc.value_dim = static_cast<int>(value_dim);
    desc.mask_bits = inputs.mask.has_value();
    desc.segments = inputs.q_segments != 0;
    desc.sequences = inputs.sequences;
    desc.listed = desc.mask_bits || desc.segments || desc.sequences > 0;
    desc.dropout = inputs.dropout > 0;
    desc.sinks = inputs.sinks != 0;
    desc.length_bytes = inputs.length_bytes;
    desc.lower_bound = inputs.lower_diagonal.has_value();
    desc.upper_bound = desc.lower_bound || inputs.upper_diagonal.has_value();
    // Diagonals outside the rectangle mean what its corners mean.
    desc.lower_diagonal = std::clamp(inputs.lower_diagonal.value_or(-q_len), -q_len, kv_len);
    desc.upper_diagonal = std::clamp(inputs.upper_diagonal.value_or(kv_len), -q_len, kv_len);
    desc.batch = batch;
    desc.heads = heads;
    desc.kv_heads = kv_heads;
    desc.q_len = q_len;
    desc.kv_len = kv_len;
}

std::string variant_name(const ProblemDesc& desc) {
    return fmt::format("{}_d{}x{}{}{}{}{}", name(desc.dtype), desc.query_dim, desc.value_dim,
                       desc.listed        ? "_listed"
                       : desc.lower_bound ? "_window"
                       : desc.upper_bound ? "_causal"
                                          : "",
                       desc.length_bytes > 0 ? "_lengths" : "", desc.dropout ? "_dropout" : "",
                       desc.score_mod != nullptr ? "_mod" : "");
}

std::string config_constants(const ProblemDesc& desc) {
    return fmt::format(R"(using Element = {};
constexpr int kQueryDim = {};
constexpr int kValueDim = {};
constexpr bool kUpperBound = {};
constexpr bool kLowerBound = {};
constexpr bool kListedBlocks = {};
constexpr bool kMaskBits = {};
constexpr bool kSegments = {};
constexpr bool kPacked = {};
constexpr int kLengthBytes = {};
constexpr bool kDropout = {};
constexpr bool kScoreMod = {};
constexpr bool kSinks = {};
)",
                       desc.dtype == DType::f16 ? "F16" : "Bf16", desc.query_dim, desc.value_dim,
                       desc.upper_bound, desc.lower_bound, desc.listed, desc.mask_bits,
                       desc.segments, desc.sequences > 0, desc.length_bytes, desc.dropout,
                       desc.score_mod != nullptr, desc.sinks);
}

std::string variant_key(const ProblemDesc& desc) {
    return config_constants(desc) +
           fmt::format("{}", desc.score_mod != nullptr ? desc.score_mod->number : 0);
}

cuda::Header score_mod_text(const ProblemDesc& desc) {
    return {"score_mod.cuh", desc.score_mod != nullptr ? desc.score_mod->text : kNoScoreMod};
}

unsigned dropout_threshold(double share) {
    return static_cast<unsigned>(std::min(std::llround(share * 0x1p32), 0xffffffffLL));
}

}  // namespace tilewright::attn::sm90
