// Checks of attention's arguments, arrays and numbers; mods and masks are checked elsewhere.
#include "support/check.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "attention/prepare.h"
#include "attention/tensors.h"
#include "ir/function.h"
#include "mod/traced.h"
#include "run/machine.h"
#include "run/recorder.h"
#include "support/debug_log.h"
#include "tilewright/run.h"

namespace tilewright::attn {
namespace {

void check_hints(const AttentionOptions& options) {
    for (const AttentionBlocks& blocks : {options.forward_blocks, options.backward_blocks}) {
        if (blocks.q < 0 || blocks.kv < 0)
            user_error("attention", "expected blocks of at least 1, or 0, but got {} x {}",
                       blocks.q, blocks.kv);
        for (const auto& [name, hint] : {std::pair("num_warps", blocks.num_warps),
                                         std::pair("num_stages", blocks.num_stages)}) {
            if (hint < 0 || hint > ir::CompileHints::kMax)
                user_error("attention", "expected {} of 0 to {} but got {}", name,
                           ir::CompileHints::kMax, hint);
        }
        if (const int warps = blocks.num_warps; (warps & (warps - 1)) != 0)
            user_error("attention", "expected num_warps to be a power of two but got {}", warps);
    }
}

void check_origin(const AttentionOptions& options, AttentionSpec& spec) {
    spec.is_part = options.origin.has_value();
    if (!spec.is_part) return;
    const auto [batch, head] = *options.origin;
    if (batch < 0 || head < 0)
        user_error("attention", "expected an origin of at least 0 but got ({}, {})", batch, head);
    spec.origin = {batch, head};
}

void check_sizes(const Tensor& query, const Tensor& key, const Tensor& value,
                 const AttentionOptions& options, AttentionCall& call) {
    AttentionSpec& spec = call.spec;
    AttentionBuffers& b = call.buffers;
    spec.device = query.device();
    spec.dtype = query.dtype();
    b.query = check_input("query", query, query.dtype(), options.layout, spec.device);
    b.key = check_input("key", key, query.dtype(), options.layout, spec.device);
    b.value = check_input("value", value, query.dtype(), options.layout, spec.device);
    spec.batch = b.query.dim(0);
    spec.query_heads = b.query.dim(1);
    spec.query_length = b.query.dim(2);
    spec.head_dim = b.query.dim(3);
    spec.kv_heads = b.key.dim(1);
    spec.kv_length = b.key.dim(2);
    spec.value_dim = b.value.dim(3);
    if (spec.head_dim < 1 || spec.value_dim < 1)
        user_error("attention", "expected head dimensions of at least 1 but got {} and {}",
                   query.type_name(), value.type_name());
    if (b.key.dim(0) != spec.batch || b.key.dim(3) != spec.head_dim)
        user_error("attention",
                   "expected key with the query's batch and head dimension, {} and {}, "
                   "but got {}",
                   spec.batch, spec.head_dim, key.type_name());
    if (b.value.dim(0) != spec.batch || b.value.dim(1) != spec.kv_heads ||
        b.value.dim(2) != spec.kv_length)
        user_error("attention",
                   "expected value with the key's batch, heads and length, {}, {} and "
                   "{}, but got {}",
                   spec.batch, spec.kv_heads, spec.kv_length, value.type_name());
    if (spec.kv_heads == 0 ? spec.query_heads != 0 : spec.query_heads % spec.kv_heads != 0)
        user_error("attention",
                   "expected query heads to be a multiple of kv heads but got {} and {}",
                   spec.query_heads, spec.kv_heads);
    constexpr std::int64_t kLongest = std::int64_t{1} << 30;  // positions are i32 in the programs
    if (spec.query_length > kLongest || spec.kv_length > kLongest)
        user_error("attention", "expected lengths up to {} but got {} and {}", kLongest,
                   spec.query_length, spec.kv_length);
}

void check_numbers(const AttentionOptions& options, AttentionSpec& spec) {
    if (options.window.left < -1 || options.window.right < -1)
        user_error("attention", "expected window bounds of at least -1 but got ({}, {})",
                   options.window.left, options.window.right);
    spec.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(spec.head_dim)));
    if (!std::isfinite(spec.scale))
        user_error("attention", "expected a finite scale but got {}", spec.scale);
    if (!(options.dropout >= 0 && options.dropout < 1))
        user_error("attention", "expected dropout in [0, 1) but got {}", options.dropout);
    spec.dropout = options.dropout;
    spec.checked = options.checked || tilewright::checked();
    if (spec.checked && spec.on_gpu())
        user_error("attention",
                   "expected inputs in CPU memory in the checked mode, which runs there, but they "
                   "are on {}",
                   to_string(spec.device));
}

void check_precision(const AttentionOptions& options, AttentionSpec& spec) {
    const Products products = products_named(options.precision);
    if (products == Products::ieee) return;
    if (spec.dtype != f32)
        user_error(
            "attention",
            "expected precision `ieee` with query of {} but got `{}`, which says how products "
            "of f32 are computed",
            name(spec.dtype), options.precision);
    if (spec.on_gpu()) spec.products = products;
}

void check_segments(const AttentionOptions& options, AttentionCall& call) {
    const AttentionSpec& spec = call.spec;
    if (!options.segment_ids.defined()) {
        if (options.kv_segment_ids.defined())
            user_error("attention", "expected segment_ids with kv_segment_ids but got none");
        return;
    }
    const auto is_short = [](const Tensor& ids) {
        return size_of(ids.dtype()) < 4 || ids.dtype() == DType::i32;
    };
    const bool all_short = is_short(options.segment_ids) &&
                           (!options.kv_segment_ids.defined() || is_short(options.kv_segment_ids));
    const DType dtype = all_short ? DType::i32 : DType::i64;
    const auto check = [&](const char* argument, const Tensor& ids, std::int64_t length) {
        expect_shape(argument, ids, {spec.batch, length});
        if (!is_integer(ids.dtype()))
            user_error("attention", "expected {} of an integer dtype but got {}", argument,
                       ids.type_name());
        expect_device(argument, ids, spec.device);
        return ids.to(dtype).contiguous();
    };
    call.buffers.segment_ids = check("segment_ids", options.segment_ids, spec.query_length);
    call.buffers.kv_segment_ids =
        options.kv_segment_ids.defined()
            ? check("kv_segment_ids", options.kv_segment_ids, spec.kv_length)
            : check("segment_ids (as kv_segment_ids)", options.segment_ids, spec.kv_length);
    call.spec.segment_ids = dtype;
}

/// The starts of packed sequences, checked: from 0 to `total`, never decreasing.
std::vector<std::int64_t> check_starts(const char* argument, const Tensor& starts,
                                       std::int64_t total) {
    if (starts.rank() != 1 || starts.dim(0) < 2 || !is_integer(starts.dtype()))
        user_error("attention", "expected {} of N + 1 integers, N >= 1, but got {}", argument,
                   starts.type_name());
    if (starts.device().kind == Device::Kind::cuda) {
        run::expect_no_capture("attention", fmt::format("{} in CPU memory", argument));
        debug_log("attention",
                  "slow path: {} is read from the GPU, which waits; in CPU memory it would not be",
                  argument);
    }
    std::vector<std::int64_t> values = starts.to_vector<std::int64_t>();
    if (values.front() != 0 || values.back() != total)
        user_error("attention", "expected {} from 0 to the total length {} but got {} to {}",
                   argument, total, values.front(), values.back());
    for (std::size_t n = 1; n < values.size(); ++n) {
        if (values[n] < values[n - 1])
            user_error("attention", "expected {} never to decrease but got {} after {}", argument,
                       values[n], values[n - 1]);
    }
    return values;
}

void check_packed(const AttentionOptions& options, AttentionCall& call) {
    if (!options.cu_seqlens.defined()) {
        if (options.kv_cu_seqlens.defined())
            user_error("attention", "expected cu_seqlens with kv_cu_seqlens but got none");
        return;
    }
    AttentionSpec& spec = call.spec;
    AttentionBuffers& b = call.buffers;
    if (spec.batch != 1)
        user_error("attention", "expected a batch of 1 with cu_seqlens but got {}", spec.batch);
    b.starts = check_starts("cu_seqlens", options.cu_seqlens, spec.query_length);
    b.kv_starts =
        options.kv_cu_seqlens.defined()
            ? check_starts("kv_cu_seqlens", options.kv_cu_seqlens, spec.kv_length)
            : check_starts("cu_seqlens (as kv_cu_seqlens)", options.cu_seqlens, spec.kv_length);
    if (b.starts.size() != b.kv_starts.size())
        user_error("attention", "expected as many sequences of keys as of queries, {}, but got {}",
                   b.starts.size() - 1, b.kv_starts.size() - 1);
    spec.sequences = std::ssize(b.starts) - 1;
}

/// Must run after check_packed: the number of lengths is the number of sequences.
void check_kv_lengths(const AttentionOptions& options, AttentionCall& call) {
    const Tensor& given = options.kv_lengths;
    if (!given.defined()) return;
    AttentionSpec& spec = call.spec;
    AttentionBuffers& b = call.buffers;
    expect_shape("kv_lengths", given, {spec.packed() ? spec.sequences : spec.batch});
    if (!is_integer(given.dtype()))
        user_error("attention", "expected kv_lengths of an integer dtype but got {}",
                   given.type_name());
    if (given.device().kind == Device::Kind::cpu) {
        run::interrupt_recording();  // a replay would not check the next call's lengths
        const std::vector<std::int64_t> values = given.to_vector<std::int64_t>();
        for (std::size_t n = 0; n < values.size(); ++n) {
            const std::int64_t most =
                spec.packed() ? b.kv_starts[n + 1] - b.kv_starts[n] : spec.kv_length;
            if (values[n] >= 0 && values[n] <= most) continue;
            user_error("attention", "expected kv_lengths from 0 to the keys' length {} but got {}",
                       most, values[n]);
        }
    }
    const bool is_short = size_of(given.dtype()) < 4 || given.dtype() == DType::i32;
    spec.kv_lengths = is_short ? DType::i32 : DType::i64;
    b.kv_lengths = given.to(*spec.kv_lengths).contiguous();
    if (spec.on_gpu() && given.device().kind == Device::Kind::cpu) {
        b.kv_lengths = b.kv_lengths.to(spec.device);
    }
    expect_device("kv_lengths", b.kv_lengths, spec.device);
}

void check_sinks(const AttentionOptions& options, AttentionCall& call) {
    if (!options.sinks.defined()) return;
    expect_shape("sinks", options.sinks, {call.spec.query_heads});
    if (!is_float(options.sinks.dtype()))
        user_error("attention", "expected sinks of floats but got {}", options.sinks.type_name());
    expect_device("sinks", options.sinks, call.spec.device);
    call.buffers.sinks = options.sinks;
    call.spec.sinks = options.sinks.dtype();
}

/// Drops keys that the host knows to be masked: by causal, the window, or lengths in CPU memory.
void end_known_keys(const AttentionOptions& options, AttentionCall& call) {
    AttentionSpec& spec = call.spec;
    if (spec.packed() || options.block_mask.defined()) return;
    std::int64_t most = spec.kv_length;
    if (spec.kv_lengths && options.kv_lengths.device().kind == Device::Kind::cpu) {
        const auto lengths = options.kv_lengths.to_vector<std::int64_t>();
        most = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
        if (lengths.size() == 1) {
            call.buffers.kv_lengths = {};
            spec.kv_lengths.reset();
        }
    }
    end_keys(spec, call.buffers, options.causal ? 0 : options.window.right, most);
}

}  // namespace

void end_keys(AttentionSpec& spec, AttentionBuffers& buffers, std::int64_t right,
              std::int64_t most) {
    std::int64_t end = std::min(spec.kv_length, most);
    // A bound may be as large as its type: it is compared without a sum.
    if (right >= 0 && spec.query_length > 0 && right < end - spec.query_length)
        end = spec.query_length + right;
    if (end == spec.kv_length) return;
    spec.kv_length = end;
    buffers.key = rows_of(buffers.key, 0, end);
    buffers.value = rows_of(buffers.value, 0, end);
    if (buffers.kv_segment_ids.defined())
        buffers.kv_segment_ids = buffers.kv_segment_ids.slice(1, 0, end).contiguous();
}

AttentionCall check_arguments(const Tensor& query, const Tensor& key, const Tensor& value,
                              const AttentionOptions& options) {
    AttentionCall call;
    AttentionSpec& spec = call.spec;
    check_origin(options, spec);
    check_hints(options);
    check_sizes(query, key, value, options, call);
    check_numbers(options, spec);
    check_precision(options, spec);
    check_segments(options, call);
    check_packed(options, call);
    check_kv_lengths(options, call);
    check_sinks(options, call);
    if (options.score_mod.defined())
        mod::expect_kind("attention", "score_mod", options.score_mod, Mod::Kind::score);
    if (options.mask.defined())
        mod::expect_kind("attention", "mask", options.mask, Mod::Kind::mask);
    call.given_kv_length = spec.kv_length;
    end_known_keys(options, call);

    // A window as wide as the sequence masks nothing.
    const auto bound = [](std::int64_t window, std::int64_t length) {
        return window >= length ? -1 : window;
    };
    spec.causal = options.causal;
    spec.window_left = bound(options.window.left, spec.query_length);
    spec.window_right = bound(options.window.right, spec.kv_length);
    call.buffers.seed = options.seed;
    spec.deterministic = options.deterministic;
    spec.max_scores = options.max_scores;
    spec.gradient = options.gradient;
    spec.autotune = options.autotune && !spec.checked && spec.has_work();
    spec.engine = engine_named(options.engine);
    spec.forward_blocks = options.forward_blocks;
    spec.backward_blocks = options.backward_blocks;
    return call;
}

}  // namespace tilewright::attn
