// Attention backward: kv blocks outside, query blocks inside, five GEMMs per pair of blocks.
#include "attention/tiles/backward.h"

#include <limits>

namespace tilewright::attn::tiles {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Gradients of a block of keys and values.
struct State {
    Tile key;    ///< [block_k, E], not yet multiplied by the scale
    Tile value;  ///< [block_k, Ev]
};

void backward_program(const Options& options, bool segments, std::int64_t splits,
                      std::span<const Ref> refs) {
    const Ref query = refs[0], key = refs[1], value = refs[2], dout = refs[3], log2_sum = refs[4],
              delta = refs[5], query_ids = refs[6], kv_ids = refs[7], dq = refs[8], dk = refs[9],
              dv = refs[10];
    const DType sums = accumulator(query.dtype());
    const std::int64_t block_q = options.block_q, block_k = options.block_k;
    const std::int64_t head_dim = key.shape()[1], value_dim = value.shape()[1];
    const Tile query_length = query.extent(1), kv_length = key.extent(0);

    // Refs of the query side hold the heads of one group: (group, L, ...).
    for_loop(0, options.group, [&](Tile h) {
        for_loop(0, cdiv(query_length, block_q), [&](Tile i) {
            dq.at(h, ds(i * block_q, block_q)).store(zeros({block_q, head_dim}, sums));
        });
    });
    for_loop(program_id(2), cdiv(kv_length, block_k), splits, [&](Tile j) {
        const Tile first = j * block_k;
        const Slice kv_block = ds(first, block_k);
        const Tile k = key.at(kv_block).load({.other = 0}),
                   v = value.at(kv_block).load({.other = 0});
        const Tile kv_positions = first.to(i32) + iota(block_k);
        const Tile k_ids = segments ? kv_ids.at(kv_block).load({.other = 0}) : Tile();

        const auto step = [&](Tile h, bool masked) {
            return [&, h, masked](Tile i, State state) {
                const Slice rows = ds(i * block_q, block_q);
                const Tile q = query.at(h, rows).load({.other = 0}),
                           d_out = dout.at(h, rows).load({.other = 0});
                // Rows past the end read +inf: their probabilities are 0.
                const Tile offset = log2_sum.at(h, rows).load({.other = kInfinity});
                const Tile row_delta = delta.at(h, rows).load({.other = 0});
                const Tile s = dot(q, k, {.trans_b = true});
                Tile p = exp2(fma(s, options.scale * kLog2E, expand_dims(-offset, 1)));
                if (masked) {
                    const Tile q_positions = (i * block_q).to(i32) + iota(block_q);
                    const Tile q_ids = segments ? query_ids.at(rows).load({.other = 0}) : Tile();
                    p = where(attends(options, q_positions, kv_positions, kv_length, segments,
                                      q_ids, k_ids),
                              p, 0.0);
                }
                const Tile dp = dot(d_out, v, {.trans_b = true});
                const Tile d_score = (p * (dp - expand_dims(row_delta, 1))).to(key.dtype());
                const Ref dq_rows = dq.at(h, rows);
                dq_rows.store(dot(d_score, k, {.acc = dq_rows.load({.other = 0})}));
                return State{
                    dot(d_score, q, {.trans_a = true, .acc = state.key}),
                    dot(p.to(value.dtype()), d_out, {.trans_a = true, .acc = state.value})};
            };
        };
        const BlockRange blocks = query_blocks(options, first, query_length, kv_length);
        State state{zeros({block_k, head_dim}, sums), zeros({block_k, value_dim}, sums)};
        state = for_loop(0, options.group, state, [&](Tile h, State s) {
            if (segments) return for_loop(blocks.begin, blocks.end, s, step(h, true));
            s = for_loop(blocks.begin, blocks.full_begin, s, step(h, true));
            s = for_loop(blocks.full_begin, blocks.full_end, s, step(h, false));
            return for_loop(blocks.full_end, blocks.end, s, step(h, true));
        });
        dk.at(kv_block).store((state.key * options.scale).to(dk.dtype()));
        dv.at(kv_block).store(state.value.to(dv.dtype()));
    });
}

void preprocess_program(std::span<const Ref> refs) {
    const Ref out = refs[0], dout = refs[1], lse = refs[2], dlse = refs[3], log2_sum = refs[4],
              delta = refs[5];
    const Tile l = lse.load();
    log2_sum.store(where(l == -kInfinity, kInfinity, l * kLog2E));
    const DType sums = lse.dtype();
    const Tile products = sum(out.load().to(sums) * dout.load().to(sums), 1);
    delta.store(dlse.present() ? products - dlse.load().to(sums) : products);
}

void sum_parts_program(const Options& options, std::span<const Ref> refs) {
    const Ref parts = refs[0], dq = refs[1];
    const std::vector<std::int64_t> shape = dq.shape();
    const Tile sum = for_loop(1, parts.extent(0), parts.at(0).load(),
                              [&](Tile i, Tile s) { return s + parts.at(i).load(); });
    dq.store((sum * options.scale).to(dq.dtype()));
}

std::vector<std::int64_t> row_blocks(const Tensor& x, std::int64_t b, std::int64_t block_q) {
    const int first = static_cast<int>(b);
    return {x.dim(first), x.dim(first + 1), (x.dim(first + 2) + block_q - 1) / block_q};
}

}  // namespace

Call backward_preprocess(const Options& options, bool dlse) {
    const BlockSpec rows({squeezed, squeezed, options.block_q, all},
                         [](auto b, auto h, auto i) { return block(b, h, i, 0); });
    const BlockSpec statistics({squeezed, squeezed, options.block_q},
                               [](auto b, auto h, auto i) { return block(b, h, i); });
    CallOptions call_options;
    call_options.grid = [block_q = options.block_q](std::span<const Tensor> in) {
        return row_blocks(in[0], 0, block_q);
    };
    call_options.in = {rows, rows, statistics, dlse ? statistics : BlockSpec::absent()};
    call_options.out = {statistics, statistics};
    call_options.out_type = [](std::span<const Tensor> in) {
        return std::vector<TensorType>(2, {in[2].dtype(), in[2].shape()});
    };
    call_options.interpret = options.interpret;
    return call(kernel("attention_backward_preprocess",
                       {"out", "dout", "lse", "dlse", "log2_sum", "delta"}, preprocess_program),
                call_options);
}

Call backward(const Options& options, bool segments, std::int64_t splits) {
    const std::int64_t group = options.group;
    const BlockSpec query_rows({squeezed, group, all, all},
                               [](auto b, auto h, auto) { return block(b, h, 0, 0); });
    const BlockSpec kv_rows({squeezed, squeezed, all, all},
                            [](auto b, auto h, auto) { return block(b, h, 0, 0); });
    const BlockSpec statistics({squeezed, group, all},
                               [](auto b, auto h, auto) { return block(b, h, 0); });
    const BlockSpec ids({squeezed, all}, [](auto b, auto, auto) { return block(b, 0); });
    const BlockSpec parts({squeezed, squeezed, group, all, all},
                          [](auto b, auto h, auto s) { return block(s, b, h, 0, 0); });
    const BlockSpec optional_ids = segments ? ids : BlockSpec::absent();

    CallOptions call_options;
    call_options.grid = [splits](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{in[1].dim(0), in[1].dim(1), splits};
    };
    call_options.in = {query_rows, kv_rows,    kv_rows,      query_rows,
                       statistics, statistics, optional_ids, optional_ids};
    call_options.out = {parts, kv_rows, kv_rows};
    call_options.out_type = [splits](std::span<const Tensor> in) {
        std::vector<std::int64_t> shape = in[0].shape();
        shape.insert(shape.begin(), splits);
        return std::vector<TensorType>{{accumulator(in[0].dtype()), shape},
                                       {in[1].dtype(), in[1].shape()},
                                       {in[2].dtype(), in[2].shape()}};
    };
    call_options.interpret = options.interpret;
    return call(kernel("attention_backward",
                       {"query", "key", "value", "dout", "log2_sum", "delta", "segment_ids",
                        "kv_segment_ids", "dq_parts", "dk", "dv"},
                       [options, segments, splits](std::span<const Ref> refs) {
                           backward_program(options, segments, splits, refs);
                       }),
                call_options);
}

Call sum_parts(const Options& options, DType dtype) {
    CallOptions call_options;
    call_options.grid = [block_q = options.block_q](std::span<const Tensor> in) {
        return row_blocks(in[0], 1, block_q);
    };
    call_options.in = {BlockSpec({all, squeezed, squeezed, options.block_q, all},
                                 [](auto b, auto h, auto i) { return block(0, b, h, i, 0); })};
    call_options.out = {BlockSpec({squeezed, squeezed, options.block_q, all},
                                  [](auto b, auto h, auto i) { return block(b, h, i, 0); })};
    call_options.out_type = [dtype](std::span<const Tensor> in) {
        const auto& shape = in[0].shape();
        return std::vector<TensorType>{{dtype, {shape.begin() + 1, shape.end()}}};
    };
    call_options.interpret = options.interpret;
    return call(kernel("attention_backward_sum", {"dq_parts", "dq"},
                       [options](std::span<const Ref> refs) { sum_parts_program(options, refs); }),
                call_options);
}

}  // namespace tilewright::attn::tiles
