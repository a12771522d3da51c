// The checks that forward and backward share, and the text that both kernels are generated with.
#include "attention/sm90/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tilewright::attn::sm90 {
namespace {

constexpr const char* kNoScoreMod = R"(// Generated: no score mod.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd::attn {

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

}  // namespace twd::attn
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

int narrowed(std::int64_t dim) {
    return static_cast<int>(std::min<std::int64_t>(dim, std::numeric_limits<int>::max()));
}

/// Fills in what follows from the other members of a description.
void complete(ProblemDesc& desc, const std::optional<std::int64_t>& lower,
              const std::optional<std::int64_t>& upper) {
    desc.listed = desc.mask_bits || desc.segments || desc.sequences > 0;
    desc.lower_bound = lower.has_value();
    desc.upper_bound = desc.lower_bound || upper.has_value();
    // A diagonal outside the rectangle of scores acts like one through its corner.
    desc.lower_diagonal = std::clamp(lower.value_or(-desc.q_len), -desc.q_len, desc.kv_len);
    desc.upper_diagonal = std::clamp(upper.value_or(desc.kv_len), -desc.q_len, desc.kv_len);
}

/// The constants that every kernel reads, for generated configurations.
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

}  // namespace

void check_problem_arrays(const ProblemInputs& inputs) {
    const auto [batch, heads, q_len, dim] = inputs.query.shape;
    const std::int64_t kv_heads = inputs.key.shape[1], kv_len = inputs.key.shape[2];
    const std::int64_t value_dim = inputs.value.shape[3];
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
}

std::string broken_rule(const ProblemDesc& d) {
    constexpr std::int64_t kMaxInt = 1 << 29;  // sums of two positions stay in an int
    const auto fits = [](int dim) { return dim >= 8 && dim <= 256 && dim % 8 == 0; };
    if (d.dtype != DType::bf16 && d.dtype != DType::f16)
        return rule_text("query", "bf16 or f16 elements", name(d.dtype));
    if (d.batch < 0 || d.heads < 1) return rule_text("query", "at least one head", d.heads);
    if (d.kv_heads < 1 || d.heads % d.kv_heads != 0)
        return rule_text("key", "a number of heads that divides query's", d.kv_heads);
    if (!fits(d.query_dim))
        return rule_text("query", "a head dimension that is a multiple of 8 up to 256",
                         d.query_dim);
    if (!fits(d.value_dim))
        return rule_text("value", "a head dimension that is a multiple of 8 up to 256",
                         d.value_dim);
    if (d.kv_len < 0 || d.kv_len > kMaxInt) return rule_text("key", "at most 2^29 rows", d.kv_len);
    if (d.q_len < 0 || d.q_len > kMaxInt) return rule_text("query", "at most 2^29 rows", d.q_len);
    const std::int64_t tiles = d.batch * d.heads * ceil_div(std::max(d.q_len, d.kv_len), 64);
    if (tiles > kMaxInt) return rule_text("query", "at most 2^29 tiles of 64 rows", tiles);
    return {};
}

Diagonals diagonals_of(const AttentionSpec& spec) {
    Diagonals result;
    if (spec.block_mask) return result;
    if (spec.window_left >= 0) result.lower = -spec.window_left;
    if (spec.right() >= 0) result.upper = spec.right();
    return result;
}

void describe(const AttentionSpec& spec, ProblemDesc& desc) {
    desc.dtype = spec.dtype;
    desc.query_dim = narrowed(spec.head_dim);
    desc.value_dim = narrowed(spec.value_dim);
    desc.mask_bits = spec.block_mask;
    desc.segments = spec.segment_ids.has_value();
    desc.sequences = spec.sequences;
    desc.dropout = spec.dropout > 0;
    desc.sinks = spec.sinks.has_value();
    desc.length_bytes = spec.kv_lengths ? size_of(*spec.kv_lengths) : 0;
    desc.batch = spec.batch;
    desc.heads = spec.query_heads;
    desc.kv_heads = spec.kv_heads;
    desc.q_len = spec.query_length;
    desc.kv_len = spec.kv_length;
    const Diagonals diagonals = diagonals_of(spec);
    complete(desc, diagonals.lower, diagonals.upper);
}

void describe(const ProblemInputs& inputs, ProblemDesc& desc) {
    desc.dtype = inputs.dtype;
    desc.query_dim = narrowed(inputs.query.shape[3]);
    desc.value_dim = narrowed(inputs.value.shape[3]);
    desc.mask_bits = inputs.mask.has_value();
    desc.segments = inputs.q_segments != 0;
    desc.sequences = inputs.sequences;
    desc.dropout = inputs.dropout > 0;
    desc.sinks = inputs.sinks != 0;
    desc.length_bytes = inputs.length_bytes;
    desc.batch = inputs.query.shape[0];
    desc.heads = inputs.query.shape[1];
    desc.kv_heads = inputs.key.shape[1];
    desc.q_len = inputs.query.shape[2];
    desc.kv_len = inputs.key.shape[2];
    complete(desc, inputs.lower_diagonal, inputs.upper_diagonal);
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

std::string variant_key(const ProblemDesc& desc) {
    return config_constants(desc) +
           fmt::format("{}", desc.score_mod != nullptr ? desc.score_mod->number : 0);
}

cuda::CompileRequest kernel_request(std::string name, const ProblemDesc& desc,
                                    std::span<const cuda::WgmmaShape> products, int spills) {
    cuda::CompileRequest request;
    request.name = std::move(name);
    request.arch = "sm_90a";
    // What a user's mod makes the kernel spill is the price of the mod; the debug log tells it.
    if (desc.score_mod == nullptr) request.spill_limit_bytes = spills;
    request.headers = device_headers();
    request.headers.push_back(
        {"wgmma_shapes.cuh", cuda::wgmma_shapes_header(products, /*with_compact=*/true)});
    request.headers.push_back(
        {"score_mod.cuh", desc.score_mod != nullptr ? desc.score_mod->text : kNoScoreMod});
    return request;
}

cuda::Header config_header(std::string file, std::string_view what, const ProblemDesc& desc,
                           std::string_view constants) {
    return {std::move(file), fmt::format(R"(// Generated: {}.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd::attn {{

{}{}
}}  // namespace twd::attn
)",
                                         what, config_constants(desc), constants)};
}

unsigned dropout_threshold(double share) {
    return static_cast<unsigned>(std::min(std::llround(share * 0x1p32), 0xffffffffLL));
}

}  // namespace tilewright::attn::sm90
