// Masks and attention in the C interface.
#include "tilewright/attention.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "c_api/convert.h"
#include "support/check.h"

using namespace tilewright;
using c_api::borrow;
using c_api::expect_given;
using c_api::guarded;
using c_api::Results;

namespace {

AttentionOptions options_from(const tw_attention_options* given) {
    if (!given) return {};
    tw_attention_options o;
    tw_attention_options_init(&o);
    if (given->size < offsetof(tw_attention_options, causal) || given->size > sizeof o)
        user_error("attention",
                   "expected options.size of up to {}, as tw_attention_options_init sets it, but "
                   "got {}",
                   sizeof o, given->size);
    std::memcpy(&o, given, given->size);
    AttentionOptions options;
    if (!std::isnan(o.scale)) options.scale = o.scale;
    options.causal = o.causal != 0;
    options.window = {.left = o.window_left, .right = o.window_right};
    options.segment_ids = borrow(o.segment_ids);
    options.kv_segment_ids = borrow(o.kv_segment_ids);
    if (o.mask_mod) options.mask = o.mask_mod->mod;
    if (o.block_mask) options.block_mask = o.block_mask->mask;
    if (o.score_mod) options.score_mod = o.score_mod->mod;
    options.cu_seqlens = borrow(o.cu_seqlens);
    options.kv_cu_seqlens = borrow(o.kv_cu_seqlens);
    options.kv_lengths = borrow(o.kv_lengths);
    options.sinks = borrow(o.sinks);
    options.dropout = o.dropout;
    options.seed = o.seed;
    options.layout = o.bshd ? Layout::bshd : Layout::bhsd;
    options.deterministic = o.deterministic != 0;
    options.checked = o.checked != 0;
    if (o.engine) options.engine = o.engine;
    if (o.precision) options.precision = o.precision;
    return options;
}

}  // namespace

tw_status tw_create_block_mask(const tw_mod* mod, int64_t batch, int64_t heads, int64_t q_len,
                               int64_t kv_len, int64_t q_block, int64_t kv_block,
                               tw_mask** result) {
    return guarded([&] {
        expect_given("tw_create_block_mask", "mod", mod);
        expect_given("tw_create_block_mask", "result", result);
        *result = new tw_mask{
            create_block_mask(mod->mod, batch, heads, q_len, kv_len, {q_block, kv_block})};
    });
}

void tw_mask_release(tw_mask* mask) {
    delete mask;
}

tw_status tw_mask_describe(const tw_mask* mask, double* sparsity, int64_t* nbytes) {
    return guarded([&] {
        expect_given("tw_mask_describe", "mask", mask);
        if (sparsity) *sparsity = mask->mask.sparsity();
        if (nbytes) *nbytes = mask->mask.nbytes();
    });
}

void tw_attention_options_init(tw_attention_options* options) {
    if (!options) return;
    *options = {};
    options->size = sizeof *options;
    options->scale = std::numeric_limits<double>::quiet_NaN();
    options->window_left = options->window_right = -1;
    options->deterministic = 1;
}

tw_status tw_attention(const DLTensor* query, const DLTensor* key, const DLTensor* value,
                       const tw_attention_options* options, DLManagedTensor** out,
                       DLManagedTensor** lse, DLManagedTensor** max_scores) {
    return guarded([&] {
        AttentionOptions given = options_from(options);
        given.max_scores = max_scores != nullptr;
        const AttentionOutput output = attention(borrow(query), borrow(key), borrow(value), given);
        Results results;
        results.add(out, output.out);
        results.add(lse, output.lse);
        results.add(max_scores, output.max_scores);
        results.give();
    });
}

tw_status tw_attention_backward(const DLTensor* query, const DLTensor* key, const DLTensor* value,
                                const DLTensor* out, const DLTensor* lse, const DLTensor* dout,
                                const DLTensor* dlse, const tw_attention_options* options,
                                DLManagedTensor** dquery, DLManagedTensor** dkey,
                                DLManagedTensor** dvalue, DLManagedTensor** dsinks,
                                DLManagedTensor** dcaptured, int captured) {
    return guarded([&] {
        const AttentionOutput forward{.out = borrow(out), .lse = borrow(lse), .max_scores = {}};
        const AttentionGradients gradients =
            attention_backward(borrow(query), borrow(key), borrow(value), forward, borrow(dout),
                               options_from(options), borrow(dlse));
        if (dcaptured && static_cast<std::size_t>(captured) != gradients.captured.size())
            user_error("attention_backward",
                       "expected `captured` to be {}, the floating captures of the score mod, but "
                       "got {}",
                       gradients.captured.size(), captured);
        Results results;
        results.add(dquery, gradients.query);
        results.add(dkey, gradients.key);
        results.add(dvalue, gradients.value);
        results.add(dsinks, gradients.sinks);
        for (std::size_t i = 0; dcaptured && i < gradients.captured.size(); ++i)
            results.add(&dcaptured[i], gradients.captured[i]);
        results.give();
    });
}
