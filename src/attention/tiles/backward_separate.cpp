// Attention backward for warpgroups: one program for dK and dV, another for dQ. Each sum stays in
// registers, and so do the probabilities that are multiplied: their rows are those of the sum.
#include <bit>
#include <optional>

#include "attention/tiles/backward.h"
#include "attention/tiles/pairs.h"
#include "support/integer.h"

namespace tilewright::attn::tiles {
namespace {

/// Where the arrays of either program are among its Refs.
enum Input : std::size_t {
    kQuery,
    kKey,
    kValue,
    kDout,
    kLog2Sum,
    kDelta,
    kQueryIds,
    kKvIds,
    kNumInputs
};

/// Gradients of a block of keys and values; of what is not wanted a scalar.
struct State {
    Tile key;    ///< [block_k, E], not yet multiplied by the scale
    Tile value;  ///< [block_k, Ev]
};

/// Of a tile of pairs, whose rows are queries or keys.
struct Weights {
    Tile scaled;
    Tile probabilities;  ///< with dropout negative where they are dropped
    Tile slope;          ///< of a linear gradient: probabilities times the mod's derivative
};

/// All columns of an array's rows, as many as warpgroups multiply; those past its own are 0.
Slice columns_of(const Ref& rows) {
    return ds(constant(0, i64), padded_columns(rows.shape().back()));
}

struct Programs {
    Programs(const Options& given, const Features& of, const ScoreDerivative& by,
             std::span<const Ref> refs)
        : options(given),
          features(of),
          derivative(by),
          query(refs[kQuery]),
          key(refs[kKey]),
          value(refs[kValue]),
          dout(refs[kDout]),
          log2_sum(refs[kLog2Sum]),
          delta(refs[kDelta]),
          query_ids(refs[kQueryIds]),
          kv_ids(refs[kKvIds]),
          pairs(options, features, refs.subspan(kNumInputs, num_extras(features))) {}

    /// `offset` of the queries, along their axis; `inside`: a mask of positions; `others`: of ids
    /// and of bits.
    Weights weights(const Tile& s, const Tile& offset, const Place& place, const Tile& inside,
                    const std::vector<Tile>& others) const {
        Tile scaled, score = s;
        double unit = options.scale;
        if (features.score) {
            unit = 1;
            scaled = s * options.scale;
            score = pairs.score(scaled, place, {});
        }
        Tile p = exp2(fma(score, kLog2E * unit, -offset), true);
        // One by one: what holds for all of a tile is skipped.
        p = where(broadcast_to(inside, s.shape()), p, 0.0);
        if (features.mask) p = where(broadcast_to(pairs.mask(place, {}), s.shape()), p, 0.0);
        for (const Tile& mask : others) p = where(broadcast_to(mask, s.shape()), p, 0.0);
        if (features.dropout > 0) p = where(pairs.is_kept(place), p, -p);
        return {scaled, p, is_linear() ? gradient(scaled, p, p, place) : Tile()};
    }
    bool has_derivative() const { return features.score && !derivative.is_identity; }
    /// Is the mod's gradient the cotangent times something? Then that is multiplied before the
    /// gradients of the probabilities arrive, so that nothing of the mod is kept in registers.
    bool is_linear() const {
        return has_derivative() && !features.score.derivative && features.dropout == 0;
    }
    Tile gradient(const Tile& scaled, const Tile& p, const Tile& cotangent,
                  const Place& place) const {
        const Tile by_score = pairs.score_gradient(derivative, scaled, place, cotangent)[0];
        // Where the probability is 0 the mod's derivative may be anything.
        return where(p != 0, by_score, 0.0);
    }
    /// The weights of the values.
    Tile kept(const Tile& p) const {
        return features.dropout > 0 ? maximum(p, 0.0) * (1 / (1 - features.dropout)) : p;
    }
    /// The gradient of the scores before they are scaled. What needs it stands after what needs the
    /// probabilities alone, which is multiplied meanwhile.
    Tile d_score(const Weights& of, const Tile& dp, const Tile& row_delta,
                 const Place& place) const {
        if (is_linear()) return of.slope * (dp - row_delta);
        const Tile& p = of.probabilities;
        const Tile result =
            features.dropout > 0 ? kept(p) * dp - abs(p) * row_delta : p * (dp - row_delta);
        return has_derivative() ? gradient(of.scaled, p, result, place) : result;
    }
    /// The bits of a mask for an entry of its plan's list.
    Tile bits(const Tile& entry) const {
        return pairs.extra(Extra::bits)
            .at(pairs.extra(Extra::partial).at(entry, 1).load())
            .load({.other = false});
    }
    /// Adds all blocks of a row of the plan to `state`: `visit(block, state, bits)`.
    template <typename S, typename Visit>
    S scan(const PlanRow& row, S state, const Visit& visit) const {
        state = for_loop(row.partial_begin, row.partial_end, state, [&](Tile entry, S s) {
            const Tile block = pairs.extra(Extra::partial).at(entry, 0).load().to(i64);
            return visit(block, s, std::optional(bits(entry)));
        });
        return for_loop(row.full_begin, row.full_end, state, [&](Tile entry, S outer) {
            const Ref& runs = pairs.extra(Extra::full);
            const Tile begin = runs.at(entry, 0).load().to(i64);
            return for_loop(
                begin, begin + runs.at(entry, 1).load().to(i64), outer,
                [&](Tile block, S s) { return visit(block, s, std::optional<Tile>()); });
        });
    }

    const Options& options;
    const Features& features;
    const ScoreDerivative& derivative;
    const Ref query, key, value, dout, log2_sum, delta, query_ids, kv_ids;
    const Pairs pairs;
};

void keys_program(const Options& options, const Features& features,
                  const ScoreDerivative& derivative, std::span<const Ref> refs) {
    const Programs of(options, features, derivative, refs);
    std::size_t output = kNumInputs + num_extras(features);
    const auto next = [&](bool wanted) { return wanted ? refs[output++] : refs[0]; };
    const Ref dk = next(options.key_gradient), dv = next(options.value_gradient);
    const DType sums = accumulator(of.query.dtype());
    const std::int64_t block_k = options.block_k, step = options.step_q;
    const Tile query_length = of.query.extent(1), kv_length = of.pairs.kv_length(of.key.extent(0));
    const Tile b = of.pairs.batch(program_id(0));
    // The last programs start first; under diagonals the first keys have most queries.
    const Tile j = num_programs(2) - 1 - program_id(2), first = j * block_k;
    const Slice kv_block = ds(first, block_k);
    const Tile k = of.key.at(kv_block, columns_of(of.key)).load({.other = 0}),
               v = of.value.at(kv_block, columns_of(of.value)).load({.other = 0});
    const Tile kv_positions = expand_dims(first.to(i32) + iota(block_k), 1);
    const Tile kv_places = expand_dims(first + iota(block_k, i64), 1);
    Tile k_ids;
    if (features.segments) k_ids = expand_dims(of.kv_ids.at(kv_block).load({.other = 0}), 1);
    Options sizes = options;
    sizes.block_q = step;

    const auto visit = [&](Tile h, Tile i, State state, const std::optional<Tile>& bits) {
        const Tile begin = i * step;
        const Slice rows = ds(begin, step);
        const Tile offset = expand_dims(of.log2_sum.at(h, rows).load({.other = 0}), 0),
                   row_delta = expand_dims(of.delta.at(h, rows).load({.other = 0}), 0);
        const Tile q = of.query.at(h, rows, columns_of(of.query)).load({.other = 0}),
                   d_out = of.dout.at(h, rows, columns_of(of.dout)).load({.other = 0});
        const Tile s = product(options, k, q, {.trans_b = true});
        // At work while probabilities are computed, unless what a mod's derivative needs of the
        // scores takes its registers.
        const bool is_late = of.has_derivative();
        const auto multiply = [&] { return product(options, v, d_out, {.trans_b = true}); };
        Tile dp = is_late ? Tile() : multiply();
        const Tile q_positions = expand_dims(begin.to(i32) + iota(step), 0);
        const Tile mask = attends(options, q_positions, kv_positions, kv_length) &
                          (q_positions < query_length.to(i32));
        const Place place{b,
                          of.pairs.head(program_id(1) * options.group + h),
                          expand_dims(begin + iota(step, i64), 0),
                          kv_places,
                          begin,
                          first};
        std::vector<Tile> others;
        if (features.segments) {
            others.push_back(expand_dims(of.query_ids.at(rows).load({.other = 0}), 0) == k_ids);
        }
        if (bits) others.push_back(*bits);
        const Weights w = of.weights(s, offset, place, mask, others);
        if (is_late) dp = multiply();
        if (options.value_gradient) {
            state.value = product(options, of.kept(w.probabilities).to(of.value.dtype()), d_out,
                                  {.acc = state.value});
        }
        if (options.key_gradient) {
            const Tile d_score = of.d_score(w, dp, row_delta, place).to(of.key.dtype());
            state.key = product(options, d_score, q, {.acc = state.key});
        }
        return state;
    };
    const auto none = [&](bool wanted, std::int64_t width) {
        return wanted ? zeros({block_k, width}, sums) : constant(0, sums);
    };
    State state{none(options.key_gradient, padded_columns(of.key.shape()[1])),
                none(options.value_gradient, padded_columns(of.value.shape()[1]))};
    const BlockRange blocks = query_blocks(sizes, first, query_length, kv_length, features.lengths);
    const auto visit_head = [&](Tile h, State before) {
        if (features.plan) {
            const PlanRow row =
                of.pairs.plan_row(b, of.pairs.head(program_id(1) * options.group + h), j);
            return of.scan(row, before, [&](Tile i, State s, const std::optional<Tile>& bits) {
                return visit(h, i, s, bits);
            });
        }
        return for_loop(blocks.begin, blocks.end, before,
                        [&](Tile i, State s) { return visit(h, i, s, {}); });
    };
    state = options.group == 1 ? visit_head(constant(0, i64), state)
                               : for_loop(0, options.group, state, visit_head);
    if (options.key_gradient) {
        dk.at(kv_block, columns_of(dk)).store((state.key * options.scale).to(dk.dtype()));
    }
    if (options.value_gradient) {
        dv.at(kv_block, columns_of(dv)).store(state.value.to(dv.dtype()));
    }
}

void queries_program(const Options& options, const Features& features,
                     const ScoreDerivative& derivative, std::span<const Ref> refs) {
    const Programs of(options, features, derivative, refs);
    const Ref dq = refs[kNumInputs + num_extras(features)];
    const DType sums = accumulator(of.query.dtype());
    const std::int64_t block_q = options.block_q, step = options.step_k;
    const Tile first = program_id(2) * block_q, kv_length = of.pairs.kv_length(of.key.extent(0));
    const Tile b = of.pairs.batch(program_id(0)), h = of.pairs.head(program_id(1));
    const Slice rows = ds(0, block_q);
    const Tile q = of.query.at(rows, columns_of(of.query)).load({.other = 0}),
               d_out = of.dout.at(rows, columns_of(of.dout)).load({.other = 0});
    const Tile offset = expand_dims(of.log2_sum.load(), 1),
               row_delta = expand_dims(of.delta.load(), 1);
    const Tile q_positions = expand_dims(first.to(i32) + iota(block_q), 1);
    const Tile q_places = expand_dims(first + iota(block_q, i64), 1);
    Tile q_ids;
    if (features.segments) q_ids = expand_dims(of.query_ids.load(), 1);
    Options sizes = options;
    sizes.block_k = step;
    const BlockRange blocks = kv_blocks(sizes, first, kv_length);
    const auto visit = [&](Tile j, Tile sum, const std::optional<Tile>& bits) {
        const Tile begin = j * step;
        const Slice keys = ds(begin, step);
        const Tile k = of.key.at(keys, columns_of(of.key)).load({.other = 0}),
                   v = of.value.at(keys, columns_of(of.value)).load({.other = 0});
        const Tile s = product(options, q, k, {.trans_b = true}),
                   dp = product(options, d_out, v, {.trans_b = true});
        const Tile kv_positions = expand_dims(begin.to(i32) + iota(step), 0);
        const Tile mask = attends(options, q_positions, kv_positions, kv_length);
        const Place place{b, h, q_places, expand_dims(begin + iota(step, i64), 0), first, begin};
        std::vector<Tile> others;
        if (features.segments) {
            others.push_back(expand_dims(of.kv_ids.at(keys).load({.other = 0}), 0) == q_ids);
        }
        if (bits) others.push_back(*bits);
        const Weights w = of.weights(s, offset, place, mask, others);
        const Tile d_score = of.d_score(w, dp, row_delta, place).to(of.key.dtype());
        return product(options, d_score, k, {.acc = sum});
    };
    const Tile none = zeros({block_q, padded_columns(of.query.shape()[1])}, sums);
    const Tile sum = features.plan ? of.scan(of.pairs.plan_row(b, h, program_id(2)), none, visit)
                                   : for_loop(blocks.begin, blocks.end, none,
                                              [&](Tile j, Tile s) { return visit(j, s, {}); });
    dq.at(rows, columns_of(dq)).store((sum * options.scale).to(dq.dtype()));
}

/// Of the arrays that both programs read.
CallOptions call_options_of(const Options& options, const Features& features,
                            std::vector<std::string>& names) {
    CallOptions call_options;
    call_options.dynamic = {{kQuery, {0, 1, 2}}, {kKey, {0, 1, 2}},     {kValue, {0, 1, 2}},
                            {kDout, {0, 1, 2}},  {kLog2Sum, {0, 1, 2}}, {kDelta, {0, 1, 2}}};
    names = {"query", "key", "value", "dout", "log2_sum", "delta", "segment_ids", "kv_segment_ids"};
    if (features.segments) {
        call_options.dynamic[kQueryIds] = call_options.dynamic[kKvIds] = {0, 1};
    }
    call_options.num_stages = options.num_stages;
    call_options.interpret = options.interpret;
    call_options.in.resize(kNumInputs, BlockSpec::absent());
    add_extras(features, call_options, names);
    return call_options;
}

}  // namespace

Call backward_of_keys(const Options& options, const Features& features,
                      const ScoreDerivative& derivative) {
    std::vector<std::string> names;
    CallOptions call_options = call_options_of(options, features, names);
    const BlockSpec query_rows({squeezed, options.group, all, all},
                               [](auto b, auto h, auto) { return block(b, h, 0, 0); });
    const BlockSpec kv_rows({squeezed, squeezed, all, all},
                            [](auto b, auto h, auto) { return block(b, h, 0, 0); });
    const BlockSpec statistics({squeezed, options.group, all},
                               [](auto b, auto h, auto) { return block(b, h, 0); });
    call_options.grid = [block_k = options.block_k](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{in[kKey].dim(0), in[kKey].dim(1),
                                         ceil_div(in[kKey].dim(2), block_k)};
    };
    for (const Input input : {kQuery, kDout}) call_options.in[input] = query_rows;
    for (const Input input : {kKey, kValue}) call_options.in[input] = kv_rows;
    for (const Input input : {kLog2Sum, kDelta}) call_options.in[input] = statistics;
    if (features.segments) {
        const BlockSpec ids({squeezed, all}, [](auto b, auto, auto) { return block(b, 0); });
        call_options.in[kQueryIds] = call_options.in[kKvIds] = ids;
    }
    std::vector<Input> gradients;
    if (options.key_gradient) gradients.push_back(kKey);
    if (options.value_gradient) gradients.push_back(kValue);
    for (const Input of : gradients) {
        call_options.dynamic[static_cast<int>(names.size())] = {0, 1, 2};
        call_options.out.push_back(kv_rows);
        names.emplace_back(of == kKey ? "dk" : "dv");
    }
    call_options.out_type = [gradients](std::span<const Tensor> in) {
        std::vector<TensorType> types;
        for (const Input of : gradients) types.push_back({in[of].dtype(), in[of].shape()});
        return types;
    };
    return call(kernel("attention_backward_keys", distinct(std::move(names)),
                       [options, features, derivative](std::span<const Ref> refs) {
                           keys_program(options, features, derivative, refs);
                       }),
                call_options);
}

Call backward_of_queries(const Options& options, const Features& features,
                         const ScoreDerivative& derivative) {
    std::vector<std::string> names;
    CallOptions call_options = call_options_of(options, features, names);
    const std::int64_t block_q = options.block_q;
    const BlockSpec query_rows({squeezed, squeezed, block_q, all},
                               [](auto b, auto h, auto i) { return block(b, h, i, 0); });
    const BlockSpec kv_rows(
        {squeezed, squeezed, all, all},
        [group = options.group](auto b, auto h, auto) { return block(b, h / group, 0, 0); });
    const BlockSpec statistics({squeezed, squeezed, block_q},
                               [](auto b, auto h, auto i) { return block(b, h, i); });
    call_options.grid = [block_q](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{in[kQuery].dim(0), in[kQuery].dim(1),
                                         ceil_div(in[kQuery].dim(2), block_q)};
    };
    for (const Input input : {kQuery, kDout}) call_options.in[input] = query_rows;
    for (const Input input : {kKey, kValue}) call_options.in[input] = kv_rows;
    for (const Input input : {kLog2Sum, kDelta}) call_options.in[input] = statistics;
    if (features.segments) {
        call_options.in[kQueryIds] =
            BlockSpec({squeezed, block_q}, [](auto b, auto, auto i) { return block(b, i); });
        call_options.in[kKvIds] =
            BlockSpec({squeezed, all}, [](auto b, auto, auto) { return block(b, 0); });
    }
    call_options.dynamic[static_cast<int>(names.size())] = {0, 1, 2};
    call_options.out = {query_rows};
    names.emplace_back("dq");
    call_options.out_type = [](std::span<const Tensor> in) {
        return std::vector<TensorType>{{in[kQuery].dtype(), in[kQuery].shape()}};
    };
    return call(kernel("attention_backward_queries", distinct(std::move(names)),
                       [options, features, derivative](std::span<const Ref> refs) {
                           queries_program(options, features, derivative, refs);
                       }),
                call_options);
}

}  // namespace tilewright::attn::tiles
