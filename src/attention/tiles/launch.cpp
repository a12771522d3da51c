// Parts of calls, scratch, mask plans and the extra inputs of tile programs.
#include "attention/tiles/launch.h"

#include <algorithm>
#include <array>

#include "attention/mask_cache.h"
#include "attention/prepare.h"
#include "attention/tensors.h"
#include "attention/tiles/engine.h"
#include "run/cuda_memory.h"
#include "run/machine.h"
#include "run/recorder.h"
#include "support/check.h"
#include "support/integer.h"

namespace tilewright::attn::tiles {

std::int64_t Scratch::bytes(DType dtype, const Tensor::Dims& shape) {
    constexpr std::int64_t kAlignment = 256;
    std::int64_t bytes = size_of(dtype);
    for (const std::int64_t extent : shape) bytes *= extent;
    return ceil_div(bytes, kAlignment) * kAlignment;
}

Tensor Scratch::take(DType dtype, const Tensor::Dims& shape) {
    const std::int64_t begin = used_;
    used_ += bytes(dtype, shape);
    TW_ASSERT(used_ <= (workspace_.defined() ? workspace_.nbytes() : 0), "a workspace too small");
    if (used_ == begin) return Tensor::empty(dtype, shape, workspace_.device());
    return Tensor::from_data(static_cast<std::byte*>(workspace_.raw()) + begin, dtype, shape, {},
                             workspace_.owner(), workspace_.device());
}

Work sequence(const AttentionSpec& whole, const AttentionBuffers& all, std::size_t n) {
    Work work{whole, all};
    AttentionSpec& spec = work.spec;
    AttentionBuffers& b = work.buffers;
    const std::int64_t q = all.starts[n], kv = all.kv_starts[n];
    spec.sequences = 0;
    b.starts.clear();
    b.kv_starts.clear();
    spec.query_length = all.starts[n + 1] - q;
    spec.kv_length = all.kv_starts[n + 1] - kv;
    const auto of_query = [&](const Tensor& x) { return rows_of(x, q, spec.query_length); };
    const auto of_key = [&](const Tensor& x) { return rows_of(x, kv, spec.kv_length); };
    b.query = of_query(all.query);
    b.key = of_key(all.key);
    b.value = of_key(all.value);
    if (all.segment_ids.defined()) {
        b.segment_ids = all.segment_ids.slice(1, q, spec.query_length);
        b.kv_segment_ids = all.kv_segment_ids.slice(1, kv, spec.kv_length);
    }
    if (all.kv_lengths.defined()) {
        b.kv_lengths = all.kv_lengths.slice(0, static_cast<std::int64_t>(n), 1);
    }
    b.result = {of_query(all.result.out), of_query(all.result.lse),
                of_query(all.result.max_scores)};
    b.dout = of_query(all.dout);
    b.dlse = of_query(all.dlse);
    b.query_gradient = of_query(all.query_gradient);
    b.key_gradient = of_key(all.key_gradient);
    b.value_gradient = of_key(all.value_gradient);
    b.workspace = {};
    spec.origin[0] += static_cast<std::int64_t>(n);
    if (all.block_mask.defined()) {
        b.block_mask = all.block_mask.shifted(q, kv, spec.query_length, spec.kv_length);
    } else {
        end_keys(spec, b, spec.right(), spec.kv_length);
        b.key_gradient = attended_part(b.key_gradient, spec.kv_length);
        b.value_gradient = attended_part(b.value_gradient, spec.kv_length);
    }
    if (spec.pass == Pass::forward) spec.joined_rows = has_joined_rows(spec, b);
    return work;
}

void for_each_sequence(const AttentionSpec& spec, const std::function<void(std::size_t)>& body,
                       bool independent) {
    run::interrupt_recording();  // the number and lengths of sequences do not follow from shapes
    if (independent && !spec.on_gpu() && !spec.checked) {
        run::parallel_for(spec.sequences,
                          [&](std::int64_t n) { body(static_cast<std::size_t>(n)); });
        return;
    }
    for (std::int64_t n = 0; n < spec.sequences; ++n) body(static_cast<std::size_t>(n));
}

Work part(const AttentionSpec& whole, const AttentionBuffers& all, std::int64_t b,
          std::int64_t batches, std::int64_t first, std::int64_t count) {
    Work work{whole, all};
    AttentionSpec& spec = work.spec;
    const std::int64_t group = whole.group();
    spec.batch = batches;
    spec.kv_heads = count;
    spec.query_heads = count * group;
    const auto of_query = [&](const Tensor& x) {
        return heads_of(batches_of(x, b, batches), first * group, count * group);
    };
    const auto of_key = [&](const Tensor& x) {
        return heads_of(batches_of(x, b, batches), first, count);
    };
    AttentionBuffers& parts = work.buffers;
    for (Tensor* x : {&parts.query, &parts.result.out, &parts.result.lse, &parts.dout, &parts.dlse,
                      &parts.query_gradient}) {
        *x = of_query(*x);
    }
    for (Tensor* x : {&parts.key, &parts.value, &parts.key_gradient, &parts.value_gradient}) {
        *x = of_key(*x);
    }
    for (Tensor* x : {&parts.segment_ids, &parts.kv_segment_ids, &parts.kv_lengths}) {
        *x = batches_of(*x, b, batches);
    }
    spec.origin[0] += b;
    spec.origin[1] += first * group;
    return work;
}

Plan make_plan(const AttentionSpec& spec, const BlockMask& mask, const Options& options, bool by_kv,
               bool transpose_bits) {
    Plan result;
    if (!mask.defined()) return result;
    result.plan = plan_on(spec.device, mask,
                          {.block_q = options.block_q,
                           .block_kv = options.block_k,
                           .by_kv = by_kv,
                           .transpose_bits = transpose_bits,
                           .bits = mask::BitOrder::bytes});
    const mask::MaskPlan& plan = *result.plan;
    result.batch_rows = plan.batch == 1 ? 0 : plan.heads * plan.rows;
    result.head_rows = plan.heads == 1 ? 0 : plan.rows;
    result.headers = plan.headers;
    const std::int64_t before =
        spec.origin[0] * result.batch_rows + spec.origin[1] * result.head_rows;
    if (before == 0) return result;
    const run::RecorderScope paused(nullptr);  // the headers are constants, as the plan is
    const std::int64_t rows = plan.headers.dim(0), fields = plan.headers.dim(1);
    result.headers = Tensor::zeros(plan.headers.dtype(), {before + rows, fields}, spec.device);
    result.headers.slice(0, before, rows).copy_from(plan.headers);
    return result;
}

std::int64_t planned_queries(const AttentionSpec& spec, const BlockMask& mask,
                             const TilesConfig& config) {
    const std::int64_t least = config.options.block_q;
    AttentionSpec counted = spec;
    counted.device = Device{};  // a plan that is only counted is not copied to a GPU
    const auto pairs = [&](std::int64_t block_q) {
        Options options = config.options;
        options.block_q = block_q;
        const auto plan = make_plan(counted, mask, options, false).plan;
        return static_cast<double>((plan->partial_tiles + plan->full_tiles) * block_q);
    };
    const double most_pairs = spec.on_gpu() ? 1.2 : 1.05;  // pairs cost less in larger tiles
    std::int64_t block = config.most_queries;
    while (block > least && pairs(block) > most_pairs * pairs(least)) block /= 2;
    return std::max(block, least);
}

bool is_mostly_whole(const AttentionSpec& spec, const BlockMask& mask, const Options& options) {
    // A program of warpgroups waits for the bits of each partial block.
    constexpr std::int64_t kWhole = 3;
    AttentionSpec counted = spec;
    counted.device = Device{};
    const auto plan = make_plan(counted, mask, options, false).plan;
    return plan->full_tiles >= kWhole * plan->partial_tiles;
}

std::vector<Tensor> extras(const AttentionSpec& spec, const AttentionBuffers& buffers,
                           const Features& features, const Plan& plan, const Tensor& shift) {
    std::vector<Tensor> result(Extra::count);
    if (features.positions() || plan.plan) {
        const std::array<std::int64_t, 4> origin{spec.origin[0], spec.origin[1], plan.batch_rows,
                                                 plan.head_rows};
        result[Extra::origin] = run::constant(origin, spec.device);
    }
    if (features.dropout > 0) {
        Tensor& words = result[Extra::seed];
        words = Tensor::empty(u64, {}, spec.device);
        if (spec.on_gpu()) {
            const std::array<std::uint32_t, 2> halves{
                static_cast<std::uint32_t>(buffers.seed),
                static_cast<std::uint32_t>(buffers.seed >> 32)};
            run::write_words(words.raw(), halves, spec.device.index);
        } else {
            *words.data<std::uint64_t>() = buffers.seed;
        }
    }
    result[Extra::kv_lengths] = buffers.kv_lengths;
    if (plan.plan) {
        result[Extra::headers] = plan.headers;
        result[Extra::partial] = plan.plan->partial;
        result[Extra::full] = plan.plan->full;
        result[Extra::bits] = plan.plan->bits;
    }
    result[Extra::shift] = shift;
    result.insert(result.end(), buffers.captured.begin(), buffers.captured.end());
    return result;
}

}  // namespace tilewright::attn::tiles
