// Split-KV attention for few queries, and the combination of its chunks.
#include "attention/tiles/decode.h"

#include <limits>
#include <optional>

#include "attention/tiles/pairs.h"
#include "support/integer.h"

namespace tilewright::attn::tiles {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct State {
    Tile mark, sum;  ///< [group], as in the forward program
    Tile out;        ///< [group, Ev]
};

/// The results of a chunk.
struct Part {
    Tile high;  ///< [group], scaled
    Tile mark, sum, out;
};

/// Every row (the queries of a group of heads) attends to every key up to kv_length, except for a
/// mask mod: with one query at position 0 no other mask makes sense.
void decode_program(const Options& options, const Features& features, std::span<const Ref> refs) {
    const std::size_t num_inputs = 3 + num_extras(features);
    const Ref query = refs[0], key = refs[1], value = refs[2], out = refs[num_inputs],
              max_ref = refs[num_inputs + 1], mark_ref = refs[num_inputs + 2],
              sum_ref = refs[num_inputs + 3];
    const Pairs pairs(options, features, refs.subspan(3, num_inputs - 3));
    const DType sums = accumulator(query.dtype());
    const std::int64_t block_k = options.block_k, group = options.group;
    const Tile kv_length = pairs.kv_length(key.extent(0)),
               begin = program_id(2) * (kDecodeChunk / block_k);
    const Tile end = minimum(kv_length, (program_id(2) + 1) * kDecodeChunk);
    const Tile q = query.load();
    const bool folded = scales_in_exponent(options, bool(features.score));
    const double unit = folded ? options.scale : 1;
    const Exponent exponent(unit, sums, value.dtype());

    const Tile b = pairs.batch(program_id(0));
    const Tile h = expand_dims(pairs.head(program_id(1) * group) + iota(group, i64), 1);
    bool isolated = options.interpret && features.mask;  // as in the forward program
    const auto step = [&](bool masked) {
        return [&, masked](Tile j, State state) {
            const Slice block = ds(j * block_k, block_k);
            LoadOptions existing_rows{.other = 0};
            if (masked && features.lengths) {
                existing_rows.mask = expand_dims(j * block_k + iota(block_k, i64), 1) < kv_length;
            }
            Tile s = product(options, q, key.at(block).load({.other = 0}), {.trans_b = true});
            if (!folded) s *= options.scale;
            const Place place{b,
                              h,
                              constant(0, i64),
                              expand_dims(j * block_k + iota(block_k, i64), 0),
                              constant(0, i64),
                              j * block_k};
            std::optional<Tile> mask;
            if (masked) mask = place.kv < kv_length;
            if (features.mask) {
                const Tile inside = pairs.mask(place, mask);
                mask = mask ? *mask & inside : inside;
            }
            if (features.score) s = pairs.score(s, place, mask);
            if (mask) s = where(*mask, s, -kInfinity);
            const Tile mark = exponent.next_mark(state.mark, max(s, 1));
            const Tile p = exp2(fma(s, expand_dims(exponent.factor(mark), 1),
                                    expand_dims(-exponent.offset(mark), 1)));
            const Tile alpha = exponent.decay(state.mark, mark, false);
            Tile v = value.at(block).load(existing_rows);
            const Tile weights = p.to(value.dtype());
            const DotOptions sum_up{.acc = state.out * expand_dims(alpha, 1)};
            if (isolated && mask && options.gpu) {
                v = rows_that_any_attends(v, broadcast_to(*mask, s.shape()));
            }
            return State{
                mark, fma(state.sum, alpha, sum(p, 1)),
                isolated && mask && !options.gpu
                    ? dot_of_attending(weights, v, broadcast_to(*mask, s.shape()), true, sum_up)
                    : product(options, weights, v, sum_up)};
        };
    };
    const auto scan = [&] {
        const State first{exponent.first_mark(group), zeros({group}, sums),
                          zeros({group, value.shape()[1]}, sums)};
        const State state = for_loop(begin, end / block_k, first, step(false));
        return for_loop(maximum(begin, end / block_k), cdiv(end, block_k), state, step(true));
    };
    const auto scan_isolated = [&] {
        const State none{exponent.first_mark(group), zeros({group}, sums),
                         zeros({group, value.shape()[1]}, sums)};
        return for_loop(begin, cdiv(end, block_k), none, step(true));
    };
    State state = scan();
    if (!isolated && features.mask) {
        isolated = true;
        state = cond(
            any_not_finite(state.out), [&] { return options.gpu ? scan_isolated() : scan(); },
            [&] { return state; });
    }
    out.store(state.out);
    max_ref.store(exponent.high(state.mark) * unit);
    mark_ref.store(state.mark);
    sum_ref.store(state.sum);
}

void combine_program(const Exponent& exponent, std::span<const Ref> refs) {
    const Ref parts = refs[0], maxima = refs[1], marks = refs[2], sums = refs[3], sinks = refs[4],
              out = refs[5], lse = refs[6], max_scores = refs[7];
    const auto step = [&](Tile i, Part all) {
        const Tile next = marks.at(i).load(), mark = maximum(all.mark, next);
        const Tile old = exponent.decay(all.mark, mark, false),
                   fresh = exponent.decay(next, mark, false);
        return Part{maximum(all.high, maxima.at(i).load()), mark,
                    fma(all.sum, old, sums.at(i).load() * fresh),
                    fma(parts.at(i).load(), expand_dims(fresh, 1), all.out * expand_dims(old, 1))};
    };
    Part all = for_loop(
        1, parts.extent(0),
        Part{maxima.at(0).load(), marks.at(0).load(), sums.at(0).load(), parts.at(0).load()}, step);
    max_scores.store(where(all.sum == 0, -kInfinity, all.high));
    if (sinks.present()) {
        const Tile sink = sinks.load().to(all.sum.dtype()), top = maximum(all.high, sink);
        const Tile alpha = exp(all.high - top);
        all.sum = fma(all.sum, alpha, exp(sink - top));
        all.out = all.out * expand_dims(alpha, 1);
        all.high = top;
    }
    const Tile empty = all.sum == 0;
    const Tile inverse = where(empty, 0.0, 1.0 / all.sum);
    out.store((all.out * expand_dims(inverse, 1)).to(out.dtype()));
    lse.store(where(empty, -kInfinity, all.high + log(all.sum)));
}

}  // namespace

Call decode(const Options& options, const Features& features) {
    const std::int64_t group = options.group;
    const BlockSpec heads({squeezed, squeezed, all, all},
                          [](auto b, auto h, auto) { return block(b, h, 0, 0); });
    const BlockSpec row({squeezed, squeezed, squeezed, all},
                        [](auto b, auto h, auto c) { return block(b, h, c, 0); });
    CallOptions call_options;
    call_options.grid = [](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{in[1].dim(0), in[1].dim(1),
                                         ceil_div(in[1].dim(2), kDecodeChunk)};
    };
    call_options.in = {heads, heads, heads};
    call_options.out = {BlockSpec({squeezed, squeezed, squeezed, all, all},
                                  [](auto b, auto h, auto c) { return block(b, h, c, 0, 0); }),
                        row, row, row};
    call_options.out_type = [group](std::span<const Tensor> in) {
        const DType sums = accumulator(in[0].dtype());
        const std::int64_t chunks = ceil_div(in[1].dim(2), kDecodeChunk);
        const TensorType row_type{sums, {in[1].dim(0), in[1].dim(1), chunks, group}};
        return std::vector<TensorType>{
            {sums, {in[1].dim(0), in[1].dim(1), chunks, group, in[2].dim(3)}},
            row_type,
            row_type,
            row_type};
    };
    call_options.dynamic = {{0, {0, 1}}, {1, {0, 1, 2}}, {2, {0, 1, 2}}};
    std::vector<std::string> names{"query", "key", "value"};
    add_extras(features, call_options, names);
    const auto num_inputs = static_cast<int>(names.size());
    for (int output = 0; output < 4; ++output) {
        call_options.dynamic[num_inputs + output] = {0, 1, 2};
    }
    names.insert(names.end(), {"out", "max", "mark", "sum"});
    call_options.num_warps = options.num_warps;
    call_options.num_stages = options.num_stages;
    call_options.interpret = options.interpret;
    return call(kernel("attention_decode", distinct(std::move(names)),
                       [options, features](std::span<const Ref> refs) {
                           decode_program(options, features, refs);
                       }),
                call_options);
}

PartShapes part_shapes(const Tensor::Dims& query, std::int64_t kv_length, std::int64_t split_k,
                       std::int64_t value_dim) {
    const std::int64_t chunks = ceil_div(kv_length, split_k);
    return {{query[0], query[1], chunks, query[2], value_dim},
            {query[0], query[1], chunks, query[2]}};
}

Call decode_combine(const Options& options, bool score_mod, bool sinks, DType dtype,
                    std::int64_t block_rows, bool dynamic_rows) {
    const BlockDim block_of_rows = block_rows > 0 ? BlockDim(block_rows) : BlockDim(all);
    const BlockSpec chunks({squeezed, squeezed, all, block_of_rows},
                           [](auto b, auto h, auto i) { return block(b, h, 0, i); });
    const BlockSpec row({squeezed, squeezed, block_of_rows},
                        [](auto b, auto h, auto i) { return block(b, h, i); });
    CallOptions call_options;
    call_options.grid = [block_rows](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{in[0].dim(0), in[0].dim(1),
                                         block_rows > 0 ? ceil_div(in[0].dim(3), block_rows) : 1};
    };
    call_options.in = {
        BlockSpec({squeezed, squeezed, all, block_of_rows, all},
                  [](auto b, auto h, auto i) { return block(b, h, 0, i, 0); }),
        chunks, chunks, chunks,
        sinks ? BlockSpec({squeezed, all}, [](auto, auto h, auto) { return block(h, 0); })
              : BlockSpec::absent()};
    call_options.out = {BlockSpec({squeezed, squeezed, block_of_rows, all},
                                  [](auto b, auto h, auto i) { return block(b, h, i, 0); }),
                        row, row};
    call_options.out_type = [dtype](std::span<const Tensor> in) {
        const std::vector<std::int64_t>& s = in[0].shape();
        const TensorType row_type{in[0].dtype(), {s[0], s[1], s[3]}};
        return std::vector<TensorType>{{dtype, {s[0], s[1], s[3], s[4]}}, row_type, row_type};
    };
    const std::vector<int> of_parts = dynamic_rows ? std::vector{0, 1, 2, 3} : std::vector{0, 1, 2},
                           of_rows = dynamic_rows ? std::vector{0, 1, 2} : std::vector{0, 1};
    for (const int input : {0, 1, 2, 3}) call_options.dynamic[input] = of_parts;
    if (sinks) call_options.dynamic[4] = {0};
    for (const int output : {5, 6, 7}) call_options.dynamic[output] = of_rows;
    call_options.interpret = options.interpret;
    return call(kernel("attention_decode_combine",
                       {"parts", "max", "mark", "sum", "sinks", "out", "lse", "max_scores"},
                       [options, score_mod, dtype](std::span<const Ref> refs) {
                           const double unit =
                               scales_in_exponent(options, score_mod) ? options.scale : 1;
                           combine_program(Exponent(unit, accumulator(dtype), dtype), refs);
                       }),
                call_options);
}

}  // namespace tilewright::attn::tiles
