// Attention forward: online softmax with the scale folded into exp2.
#include "attention/tiles/forward.h"

#include <limits>

namespace tilewright::attn::tiles {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Running state of a block of queries.
struct State {
    Tile max;  ///< [block_q], of unscaled scores
    Tile sum;  ///< [block_q], of exp(score - max)
    Tile out;  ///< [block_q, Ev], not yet divided by sum
};

void forward_program(const Options& options, bool segments, std::span<const Ref> refs) {
    const Ref query = refs[0], key = refs[1], value = refs[2], query_ids = refs[3],
              kv_ids = refs[4], out = refs[5], lse = refs[6], max_scores = refs[7];
    const DType sums = accumulator(query.dtype());
    const std::int64_t block_q = options.block_q, block_k = options.block_k;
    const Tile first = program_id(2) * block_q, kv_length = key.extent(0);
    const Tile q = query.load();
    const Tile q_positions = first.to(i32) + iota(block_q);
    const Tile q_ids = segments ? query_ids.load() : Tile();
    // exp(scale * (s - max)) = exp2(s * factor - max * factor) needs a positive factor.
    const bool folded = options.scale > 0;
    const double unit = folded ? options.scale : 1, factor = unit * kLog2E;

    const auto step = [&](bool masked) {
        return [&, masked](Tile j, State state) {
            const Slice block = ds(j * block_k, block_k);
            Tile s = dot(q, key.at(block).load({.other = 0}), {.trans_b = true});
            if (!folded) s *= options.scale;
            if (masked) {
                const Tile kv_positions = (j * block_k).to(i32) + iota(block_k);
                const Tile ids = segments ? kv_ids.at(block).load({.other = 0}) : Tile();
                s = where(
                    attends(options, q_positions, kv_positions, kv_length, segments, q_ids, ids), s,
                    -kInfinity);
            }
            const Tile high = maximum(state.max, max(s, 1));
            const Tile offset = high * factor;
            const Tile p = exp2(fma(s, factor, expand_dims(-offset, 1)));
            const Tile alpha = exp2((state.max - high) * factor);
            return State{high, fma(state.sum, alpha, sum(p, 1)),
                         dot(p.to(value.dtype()), value.at(block).load({.other = 0}),
                             {.acc = state.out * expand_dims(alpha, 1)})};
        };
    };
    const BlockRange blocks = kv_blocks(options, first, kv_length);
    State state{full({block_q}, kLowestScore, sums), zeros({block_q}, sums),
                zeros({block_q, value.shape()[1]}, sums)};
    if (segments) {
        state = for_loop(blocks.begin, blocks.end, state, step(true));
    } else {
        if (options.window_left >= 0)
            state = for_loop(blocks.begin, blocks.full_begin, state, step(true));
        state = for_loop(blocks.full_begin, blocks.full_end, state, step(false));
        state = for_loop(blocks.full_end, blocks.end, state, step(true));
    }

    const Tile empty = state.sum == 0;
    const Tile inverse = where(empty, 0.0, 1.0 / state.sum);
    out.store((state.out * expand_dims(inverse, 1)).to(out.dtype()));
    const Tile high = state.max * unit;
    lse.store(where(empty, -kInfinity, high + log(state.sum)));
    max_scores.store(where(empty, -kInfinity, high));
}

}  // namespace

Call forward(const Options& options, bool segments, bool dynamic_queries) {
    const std::int64_t block_q = options.block_q, group = options.group;
    const auto query_row = [](auto b, auto h, auto i) { return block(b, h, i, 0); };
    const auto kv_head = [group](auto b, auto h, auto) { return block(b, h / group, 0, 0); };
    const auto row = [](auto b, auto h, auto i) { return block(b, h, i); };
    const BlockSpec q_ids({squeezed, block_q}, [](auto b, auto, auto i) { return block(b, i); });
    const BlockSpec kv_ids({squeezed, all}, [](auto b, auto, auto) { return block(b, 0); });
    const BlockSpec statistics({squeezed, squeezed, block_q}, row);

    CallOptions call_options;
    call_options.grid = [block_q](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{in[0].dim(0), in[0].dim(1),
                                         (in[0].dim(2) + block_q - 1) / block_q};
    };
    call_options.in = {
        BlockSpec({squeezed, squeezed, block_q, all}, query_row),
        BlockSpec({squeezed, squeezed, all, all}, kv_head),
        BlockSpec({squeezed, squeezed, all, all}, kv_head),
        segments ? q_ids : BlockSpec::absent(),
        segments ? kv_ids : BlockSpec::absent(),
    };
    call_options.out = {BlockSpec({squeezed, squeezed, block_q, all}, query_row), statistics,
                        statistics};
    call_options.out_type = [](std::span<const Tensor> in) {
        const Tensor &q = in[0], &v = in[2];
        const TensorType row_type{accumulator(q.dtype()), {q.dim(0), q.dim(1), q.dim(2)}};
        return std::vector<TensorType>{
            {v.dtype(), {q.dim(0), q.dim(1), q.dim(2), v.dim(3)}}, row_type, row_type};
    };
    call_options.dynamic = {{0, {0, 1}}, {1, {0, 1, 2}}, {2, {0, 1, 2}}};
    if (dynamic_queries) call_options.dynamic[0].push_back(2);
    if (segments) {
        call_options.dynamic[3] = dynamic_queries ? std::vector<int>{0, 1} : std::vector<int>{0};
        call_options.dynamic[4] = {0, 1};
    }
    call_options.interpret = options.interpret;
    return call(kernel("attention",
                       {"query", "key", "value", "segment_ids", "kv_segment_ids", "out", "lse",
                        "max_scores"},
                       [options, segments](std::span<const Ref> refs) {
                           forward_program(options, segments, refs);
                       }),
                call_options);
}

}  // namespace tilewright::attn::tiles
