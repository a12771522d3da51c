// Split-kv attention for one query, and the combination of its chunks.
#include "attention/tiles/decode.h"

#include <limits>

namespace tilewright::attn::tiles {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct State {
    Tile max, sum;  ///< [group]
    Tile out;       ///< [group, Ev]
};

/// Every key up to kv_length attends: with one query at position 0 no other mask is of use.
void decode_program(const Options& options, std::span<const Ref> refs) {
    const Ref query = refs[0], key = refs[1], value = refs[2], out = refs[3], max_ref = refs[4],
              sum_ref = refs[5];
    const DType sums = accumulator(query.dtype());
    const std::int64_t block_k = options.block_k, group = options.group;
    const Tile kv_length = key.extent(0), begin = program_id(2) * (kDecodeChunk / block_k);
    const Tile end = minimum(kv_length, (program_id(2) + 1) * kDecodeChunk);
    const Tile q = query.load();
    const bool folded = options.scale > 0;  // as in the forward program
    const double unit = folded ? options.scale : 1, factor = unit * kLog2E;

    const auto step = [&](bool masked) {
        return [&, masked](Tile j, State state) {
            const Slice block = ds(j * block_k, block_k);
            Tile s = dot(q, key.at(block).load({.other = 0}), {.trans_b = true});
            if (!folded) s *= options.scale;
            if (masked)
                s = where(expand_dims(j * block_k + iota(block_k, i64), 0) < kv_length, s,
                          -kInfinity);
            const Tile high = maximum(state.max, max(s, 1));
            const Tile offset = high * factor;
            const Tile p = exp2(fma(s, factor, expand_dims(-offset, 1)));
            const Tile alpha = exp2((state.max - high) * factor);
            return State{high, fma(state.sum, alpha, sum(p, 1)),
                         dot(p.to(value.dtype()), value.at(block).load({.other = 0}),
                             {.acc = state.out * expand_dims(alpha, 1)})};
        };
    };
    State state{full({group}, kLowestScore, sums), zeros({group}, sums),
                zeros({group, value.shape()[1]}, sums)};
    state = for_loop(begin, end / block_k, state, step(false));
    state = for_loop(maximum(begin, end / block_k), cdiv(end, block_k), state, step(true));
    out.store(state.out);
    max_ref.store(state.max * unit);
    sum_ref.store(state.sum);
}

void combine_program(std::span<const Ref> refs) {
    const Ref parts = refs[0], maxima = refs[1], sums = refs[2], out = refs[3], lse = refs[4],
              max_scores = refs[5];
    const auto step = [&](Tile i, State state) {
        const Tile m = maxima.at(i).load();
        const Tile high = maximum(state.max, m);
        const Tile old = exp(state.max - high), fresh = exp(m - high);
        return State{
            high, fma(state.sum, old, sums.at(i).load() * fresh),
            fma(parts.at(i).load(), expand_dims(fresh, 1), state.out * expand_dims(old, 1))};
    };
    const State state =
        for_loop(1, parts.extent(0),
                 State{maxima.at(0).load(), sums.at(0).load(), parts.at(0).load()}, step);
    out.store((state.out / expand_dims(state.sum, 1)).to(out.dtype()));
    lse.store(state.max + log(state.sum));
    max_scores.store(state.max);
}

}  // namespace

Call decode(const Options& options) {
    const std::int64_t group = options.group;
    const BlockSpec heads({squeezed, squeezed, all, all},
                          [](auto b, auto h, auto) { return block(b, h, 0, 0); });
    const BlockSpec row({squeezed, squeezed, squeezed, all},
                        [](auto b, auto h, auto c) { return block(b, h, c, 0); });
    CallOptions call_options;
    call_options.grid = [](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{in[1].dim(0), in[1].dim(1),
                                         (in[1].dim(2) + kDecodeChunk - 1) / kDecodeChunk};
    };
    call_options.in = {heads, heads, heads};
    call_options.out = {BlockSpec({squeezed, squeezed, squeezed, all, all},
                                  [](auto b, auto h, auto c) { return block(b, h, c, 0, 0); }),
                        row, row};
    call_options.out_type = [group](std::span<const Tensor> in) {
        const DType sums = accumulator(in[0].dtype());
        const std::int64_t chunks = (in[1].dim(2) + kDecodeChunk - 1) / kDecodeChunk;
        const TensorType row_type{sums, {in[1].dim(0), in[1].dim(1), chunks, group}};
        return std::vector<TensorType>{
            {sums, {in[1].dim(0), in[1].dim(1), chunks, group, in[2].dim(3)}}, row_type, row_type};
    };
    call_options.dynamic = {{0, {0, 1}}, {1, {0, 1, 2}}, {2, {0, 1, 2}}};
    call_options.interpret = options.interpret;
    return call(kernel("attention_decode", {"query", "key", "value", "out", "max", "sum"},
                       [options](std::span<const Ref> refs) { decode_program(options, refs); }),
                call_options);
}

Call decode_combine(const Options& options, DType dtype) {
    const BlockSpec chunks({squeezed, squeezed, all, all},
                           [](auto b, auto h) { return block(b, h, 0, 0); });
    const BlockSpec row({squeezed, squeezed, all}, [](auto b, auto h) { return block(b, h, 0); });
    CallOptions call_options;
    call_options.grid = [](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{in[0].dim(0), in[0].dim(1)};
    };
    call_options.in = {BlockSpec({squeezed, squeezed, all, all, all},
                                 [](auto b, auto h) { return block(b, h, 0, 0, 0); }),
                       chunks, chunks};
    call_options.out = {chunks, row, row};
    call_options.out_type = [dtype](std::span<const Tensor> in) {
        const std::vector<std::int64_t>& s = in[0].shape();
        const TensorType row_type{in[0].dtype(), {s[0], s[1], s[3]}};
        return std::vector<TensorType>{{dtype, {s[0], s[1], s[3], s[4]}}, row_type, row_type};
    };
    call_options.dynamic = {{0, {0, 1, 2}}, {1, {0, 1, 2}}, {2, {0, 1, 2}}};
    call_options.interpret = options.interpret;
    return call(kernel("attention_decode_combine",
                       {"parts", "max", "sum", "out", "lse", "max_scores"}, combine_program),
                call_options);
}

}  // namespace tilewright::attn::tiles
