// Checks of the arguments of attention, and parts of a problem.
#include "attention/problem.h"

#include <algorithm>
#include <cmath>

#include "mask/score_region.h"
#include "support/check.h"

namespace tilewright::attn {

Tensor to_bhsd(const Tensor& x, Layout layout) {
    return layout == Layout::bhsd ? x : x.transpose({0, 2, 1, 3});
}

/// A new tensor of BHSD shape `shape` whose memory is in `layout`, as a BHSD view.
Tensor empty_like(DType dtype, const Tensor::Dims& shape, Layout layout) {
    if (layout == Layout::bhsd) return Tensor::empty(dtype, shape);
    return Tensor::empty(dtype, {shape[0], shape[2], shape[1], shape[3]}).transpose({0, 2, 1, 3});
}

namespace {

Tensor with_unit_stride(const Tensor& x) {
    return x.size() == 0 || x.dim(-1) == 1 || x.strides().back() == 1 ? x : x.contiguous();
}

}  // namespace

void expect_shape(const char* argument, const Tensor& tensor, const Tensor::Dims& expected) {
    if (tensor.shape() == expected) return;
    user_error("attention", "expected {} of shape ({}) but got {}", argument,
               fmt::join(expected, ", "), tensor.type_name());
}

Tensor check_input(const char* argument, const Tensor& tensor, DType dtype, Layout layout) {
    if (!tensor.defined()) user_error("attention", "expected {} but it was left out", argument);
    if (tensor.rank() != 4)
        user_error("attention", "expected {} of rank 4 but got {}", argument, tensor.type_name());
    if (dtype != DType::f32 && dtype != DType::f64 && dtype != DType::f16 && dtype != DType::bf16)
        user_error("attention", "expected {} of f32, f64, f16 or bf16 but got {}", argument,
                   tensor.type_name());
    if (tensor.dtype() != dtype)
        user_error("attention", "expected {} of dtype {}, that of the query, but got {}", argument,
                   name(dtype), tensor.type_name());
    return with_unit_stride(to_bhsd(tensor, layout));
}

namespace {

/// Block sizes for these lengths.
void choose_blocks(Problem& p) {
    p.options.block_q = std::clamp<std::int64_t>(p.query_length, 1, 64);
    p.options.block_k = 16;
    while (p.options.block_k < 128 && p.options.block_k < p.kv_length) p.options.block_k *= 2;
}

void check_segments(const AttentionOptions& options, Problem& p) {
    if (!options.segment_ids.defined()) {
        if (options.kv_segment_ids.defined())
            user_error("attention", "expected segment_ids with kv_segment_ids but got none");
        return;
    }
    const auto check = [&](const char* argument, const Tensor& ids, std::int64_t length) {
        expect_shape(argument, ids, {p.batch, length});
        if (!is_integer(ids.dtype()))
            user_error("attention", "expected {} of an integer dtype but got {}", argument,
                       ids.type_name());
        return ids.to(DType::i64).contiguous();
    };
    p.segment_ids = check("segment_ids", options.segment_ids, p.query_length);
    p.kv_segment_ids =
        options.kv_segment_ids.defined()
            ? check("kv_segment_ids", options.kv_segment_ids, p.kv_length)
            : check("segment_ids (as kv_segment_ids)", options.segment_ids, p.kv_length);
}

/// Starts of packed sequences: 0 <= ... <= total, never decreasing.
std::vector<std::int64_t> check_starts(const char* argument, const Tensor& starts,
                                       std::int64_t total) {
    if (starts.rank() != 1 || starts.dim(0) < 2 || !is_integer(starts.dtype()))
        user_error("attention", "expected {} of N + 1 integers, N >= 1, but got {}", argument,
                   starts.type_name());
    std::vector<std::int64_t> values = starts.to_vector<std::int64_t>();
    if (values.front() != 0 || values.back() != total)
        user_error("attention", "expected {} from 0 to the total length {} but got {} to {}",
                   argument, total, values.front(), values.back());
    for (std::size_t n = 1; n < values.size(); ++n) {
        if (values[n] < values[n - 1])
            user_error("attention", "expected {} never to decrease but got {} behind {}", argument,
                       values[n], values[n - 1]);
    }
    return values;
}

void check_packed(const AttentionOptions& options, Problem& p) {
    if (!options.cu_seqlens.defined()) {
        if (options.kv_cu_seqlens.defined())
            user_error("attention", "expected cu_seqlens with kv_cu_seqlens but got none");
        return;
    }
    if (p.batch != 1)
        user_error("attention", "expected a batch of 1 with cu_seqlens but got {}", p.batch);
    p.starts = check_starts("cu_seqlens", options.cu_seqlens, p.query_length);
    p.kv_starts =
        options.kv_cu_seqlens.defined()
            ? check_starts("kv_cu_seqlens", options.kv_cu_seqlens, p.kv_length)
            : check_starts("cu_seqlens (as kv_cu_seqlens)", options.cu_seqlens, p.kv_length);
    if (p.starts.size() != p.kv_starts.size())
        user_error("attention", "expected as many sequences of keys as of queries, {}, but got {}",
                   p.starts.size() - 1, p.kv_starts.size() - 1);
}

/// Masks with more distinct pieces than this are evaluated in the programs: as data, with a byte
/// for each pair, they would fill memory.
constexpr std::size_t kMostAtoms = std::size_t{1} << 16;

/// Small masks are evaluated in the programs: that takes less time than building them.
bool is_worth_planning(const Problem& p) {
    constexpr std::int64_t kLeastPairs = std::int64_t{1} << 18;
    return !p.packed() && !p.options.interpret && p.query_length > 1 &&
           p.query_length * p.kv_length >= kLeastPairs;
}

void check_mods(const AttentionOptions& options, Problem& p) {
    const DType sums = tiles::accumulator(p.query.dtype());
    const bool is_checked = p.options.interpret;
    tiles::ProblemSize size{p.batch, p.query_heads, p.query_length, p.kv_length};
    if (p.packed()) size.batch = static_cast<std::int64_t>(p.starts.size()) - 1;
    const auto inlined = [&](const mod::Traced& traced, bool is_score) {
        // In decode the heads of a group are the rows; the checked mode wants every index.
        if (p.query_length == 1 || is_checked) {
            return tiles::InlinedMod{traced.function, {}, traced.text};
        }
        std::vector<Tensor::Dims> shapes;
        for (const Capture& capture : traced.captures) shapes.push_back(capture.tensor().shape());
        return tiles::with_block_loads(*traced.function, is_score, shapes, size);
    };
    if (options.score_mod.defined()) {
        mod::expect_kind("attention", "score_mod", options.score_mod, Mod::Kind::score);
        p.score = &mod::trace(options.score_mod, sums, is_checked);
        p.features.score = inlined(*p.score, true);
        const mod::Traced& plain = mod::trace(options.score_mod, sums);
        p.plain_score =
            tiles::InlinedMod{plain.function, {}, plain.text, plain.derivative, plain.gathers};
    }
    bool planned = false;
    if (options.mask.defined()) {
        mod::expect_kind("attention", "mask", options.mask, Mod::Kind::mask);
        if (is_worth_planning(p)) {
            p.block_mask = create_block_mask(options.mask, p.batch, p.query_heads, p.query_length,
                                             p.kv_length);
            planned = p.block_mask.state()->data->atoms.atoms().size() <= kMostAtoms;
            if (!planned) p.block_mask = {};
        }
    }
    if (options.score_mod.defined() && is_worth_planning(p)) {
        // Blocks that the score mod turns into -inf are skipped, too.
        const auto seen = mask::mask_of_scores(options.score_mod, p.batch, p.query_heads,
                                               p.query_length, p.kv_length);
        if (seen && seen->state()->data->atoms.atoms().size() <= kMostAtoms) {
            p.block_mask = p.block_mask.defined() ? p.block_mask & *seen : *seen;
        }
    }
    if (options.block_mask.defined()) {
        mask::check_fits("attention", options.block_mask, p.batch, p.query_heads, p.query_length,
                         p.kv_length);
        p.block_mask =
            p.block_mask.defined() ? p.block_mask & options.block_mask : options.block_mask;
    }
    if (options.mask.defined() && !planned) {
        p.mask = &mod::trace(options.mask, sums, is_checked);
        p.features.mask = inlined(*p.mask, false);
    }
    if (!(options.dropout >= 0 && options.dropout < 1))
        user_error("attention", "expected dropout in [0, 1) but got {}", options.dropout);
    p.features.dropout = options.dropout;
    if (options.dropout > 0) {
        p.seed = Tensor::from_vector(std::vector<std::uint64_t>{options.seed}, {});
    }
    if (options.sinks.defined()) {
        expect_shape("sinks", options.sinks, {p.query_heads});
        if (!is_float(options.sinks.dtype()))
            user_error("attention", "expected sinks of floats but got {}",
                       options.sinks.type_name());
        p.sinks = options.sinks;
        p.features.sinks = true;
    }
}

}  // namespace

Problem check(const Tensor& query, const Tensor& key, const Tensor& value,
              const AttentionOptions& options) {
    Problem p;
    p.query = check_input("query", query, query.dtype(), options.layout);
    p.key = check_input("key", key, query.dtype(), options.layout);
    p.value = check_input("value", value, query.dtype(), options.layout);
    p.batch = p.query.dim(0);
    p.query_heads = p.query.dim(1);
    p.query_length = p.query.dim(2);
    p.head_dim = p.query.dim(3);
    p.kv_heads = p.key.dim(1);
    p.kv_length = p.key.dim(2);
    p.value_dim = p.value.dim(3);
    if (p.head_dim < 1 || p.value_dim < 1)
        user_error("attention", "expected head dimensions of at least 1 but got {} and {}",
                   query.type_name(), value.type_name());
    if (p.key.dim(0) != p.batch || p.key.dim(3) != p.head_dim)
        user_error("attention",
                   "expected key with the query's batch and head dimension, {} and {}, "
                   "but got {}",
                   p.batch, p.head_dim, key.type_name());
    if (p.value.dim(0) != p.batch || p.value.dim(1) != p.kv_heads || p.value.dim(2) != p.kv_length)
        user_error("attention",
                   "expected value with the key's batch, heads and length, {}, {} and "
                   "{}, but got {}",
                   p.batch, p.kv_heads, p.kv_length, value.type_name());
    if (p.kv_heads == 0 ? p.query_heads != 0 : p.query_heads % p.kv_heads != 0)
        user_error("attention",
                   "expected query heads to be a multiple of kv heads but got {} and {}",
                   p.query_heads, p.kv_heads);
    constexpr std::int64_t kLongest = std::int64_t{1} << 30;  // positions are i32 in the programs
    if (p.query_length > kLongest || p.kv_length > kLongest)
        user_error("attention", "expected lengths up to {} but got {} and {}", kLongest,
                   p.query_length, p.kv_length);
    if (options.window.left < -1 || options.window.right < -1)
        user_error("attention", "expected window bounds of at least -1 but got ({}, {})",
                   options.window.left, options.window.right);
    const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(p.head_dim)));
    if (!std::isfinite(scale)) user_error("attention", "expected a finite scale but got {}", scale);
    p.options.interpret = options.checked || checked();
    check_segments(options, p);
    check_packed(options, p);
    check_mods(options, p);
    p.features.segments = p.segment_ids.defined();
    if (p.features.positions() || p.block_mask.defined()) {
        p.origin = Tensor::from_vector(std::vector<std::int64_t>{0, 0, 0, 0}, {4});
    }

    p.options.scale = scale;
    p.options.causal = options.causal;
    // A window as wide as the sequence bounds nothing.
    const auto bound = [](std::int64_t window, std::int64_t length) {
        return window >= length ? -1 : window;
    };
    p.options.window_left = bound(options.window.left, p.query_length);
    p.options.window_right = bound(options.window.right, p.kv_length);
    p.options.group = p.kv_heads == 0 ? 1 : p.query_heads / p.kv_heads;
    choose_blocks(p);
    return p;
}

void Problem::make_plan(bool by_kv) {
    if (!block_mask.defined()) return;
    plan = mask::plan(block_mask, {.block_q = options.block_q,
                                   .block_kv = options.block_k,
                                   .by_kv = by_kv,
                                   .transpose_bits = false,
                                   .bits = mask::BitOrder::bytes});
    features.plan = true;
    std::vector<std::int64_t> values = origin.to_vector<std::int64_t>();
    values[2] = plan->batch == 1 ? 0 : plan->heads * plan->rows;
    values[3] = plan->heads == 1 ? 0 : plan->rows;
    origin = Tensor::from_vector(values, {4});
}

std::vector<Tensor> Problem::extras() const {
    std::vector<Tensor> result{origin, seed, {}, {}, {}, {}};
    if (plan) result = {origin, seed, plan->headers, plan->partial, plan->full, plan->bits};
    for (const mod::Traced* traced : {score, mask}) {
        if (!traced) continue;
        for (const Capture& capture : traced->captures) result.push_back(capture.tensor());
    }
    return result;
}

std::vector<bool> Problem::differentiable() const {
    std::vector<bool> result;
    if (!score) return result;
    for (const Capture& capture : score->captures) result.push_back(capture.differentiable());
    return result;
}

Tensor batches_of(const Tensor& x, std::int64_t b, std::int64_t count) {
    return x.defined() ? x.slice(0, b, count) : x;
}
Tensor heads_of(const Tensor& x, std::int64_t h, std::int64_t count) {
    return x.defined() ? x.slice(1, h, count) : x;
}
Tensor rows_of(const Tensor& x, std::int64_t first, std::int64_t count) {
    return x.defined() ? x.slice(2, first, count) : x;
}

namespace {

Tensor moved_origin(const Tensor& origin, std::int64_t b, std::int64_t h) {
    if (!origin.defined()) return origin;
    std::vector<std::int64_t> values = origin.to_vector<std::int64_t>();
    values[0] += b;
    values[1] += h;
    return Tensor::from_vector(values, {4});
}

}  // namespace

Problem Problem::sequence(std::size_t n) const {
    Problem p = *this;
    p.starts.clear();
    p.kv_starts.clear();
    p.query_length = starts[n + 1] - starts[n];
    p.kv_length = kv_starts[n + 1] - kv_starts[n];
    p.query = rows_of(query, starts[n], p.query_length);
    p.key = rows_of(key, kv_starts[n], p.kv_length);
    p.value = rows_of(value, kv_starts[n], p.kv_length);
    if (segment_ids.defined()) {
        p.segment_ids = segment_ids.slice(1, starts[n], p.query_length);
        p.kv_segment_ids = kv_segment_ids.slice(1, kv_starts[n], p.kv_length);
    }
    p.origin = moved_origin(origin, static_cast<std::int64_t>(n), 0);
    if (block_mask.defined()) {
        p.block_mask = block_mask.shifted(starts[n], kv_starts[n], p.query_length, p.kv_length);
    }
    choose_blocks(p);
    return p;
}

Problem Problem::part(std::int64_t b, std::int64_t batches, std::int64_t first,
                      std::int64_t count) const {
    Problem p = *this;
    const std::int64_t group = options.group;
    p.batch = batches;
    p.kv_heads = count;
    p.query_heads = count * group;
    p.query = heads_of(batches_of(query, b, batches), first * group, count * group);
    p.key = heads_of(batches_of(key, b, batches), first, count);
    p.value = heads_of(batches_of(value, b, batches), first, count);
    p.segment_ids = batches_of(segment_ids, b, batches);
    p.kv_segment_ids = batches_of(kv_segment_ids, b, batches);
    p.origin = moved_origin(origin, b, first * group);
    return p;
}

}  // namespace tilewright::attn
