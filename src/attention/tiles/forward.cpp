// Attention forward: online softmax with the scale folded into exp2.
#include "attention/tiles/forward.h"

#include <functional>
#include <limits>
#include <optional>

#include "attention/tiles/decode.h"
#include "attention/tiles/pairs.h"
#include "support/integer.h"

namespace tilewright::attn::tiles {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Running state of a block of queries.
struct State {
    Tile mark;  ///< [block_q], mark of the exponent: stands for the largest score
    Tile sum;   ///< [block_q], sum of the probabilities
    Tile out;   ///< [block_q, Ev], not yet divided by sum
};

void forward_program(const Options& options, const Features& features, std::span<const Ref> refs) {
    const Ref query = refs[0], key = refs[1], value = refs[2], query_ids = refs[3],
              kv_ids = refs[4], sinks = refs[5];
    const std::size_t num_inputs = 6 + num_extras(features) +
                                   (options.isolation == Isolation::repair ? 3 : 0) +
                                   (options.row_sums ? 1 : 0);
    const Ref out = refs[num_inputs], lse = refs[num_inputs + 1], max_scores = refs.back();
    const Pairs pairs(options, features, refs.subspan(6, num_extras(features)));
    const bool segments = features.segments;
    const DType sums = accumulator(query.dtype());
    const std::int64_t block_q = options.block_q;
    const Tile first = program_id(2) * block_q, kv_length = pairs.kv_length(key.extent(0));
    const bool scaled = options.scale_operand && features.score && !options.row_sums;
    const Tile q = scaled ? query.load() * options.scale : query.load();
    const Tile q_positions = first.to(i32) + iota(block_q);
    const Tile q_ids = segments ? query_ids.load() : Tile();
    const Tile b = pairs.batch(program_id(0)), h = pairs.head(program_id(1));
    const bool folded =
        !options.row_sums && scales_in_exponent(options, features.score && !options.additive);
    const double unit = folded ? options.scale : 1;
    const Exponent exponent(unit, sums, value.dtype());

    // Masked pairs contribute nothing, whatever V holds. That takes a second form of the loops: on
    // a CPU, products with infinities and NaN are computed separately; on a GPU, rows of V that no
    // query of the program attends to are set to 0.
    bool isolated = options.interpret && features.masks(options);

    /// Adds one block of sizes.block_k keys. `analytic`: tests causal, window, segments and the end
    /// of the keys; `bits` are the plan's.
    const auto step = [&](const Options& sizes, Tile j, State state, bool analytic,
                          const std::optional<Tile>& bits) {
        const std::int64_t block_k = sizes.block_k;
        const Slice block = ds(j * block_k, block_k);
        LoadOptions existing_rows{.other = 0};
        if (analytic && features.lengths) {
            const Tile rows = expand_dims((j * block_k).to(i32) + iota(block_k), 1);
            existing_rows.mask = rows < kv_length.to(i32);
        }
        Tile s = product(options, q, key.at(block).load({.other = 0}), {.trans_b = true});
        if (!folded && !scaled) s *= options.scale;
        std::optional<Tile> mask = bits;
        if (analytic) {
            const Tile kv_positions = (j * block_k).to(i32) + iota(block_k);
            const Tile ids = segments ? kv_ids.at(block).load({.other = 0}) : Tile();
            const Tile inside =
                attends(sizes, q_positions, kv_positions, kv_length, segments, q_ids, ids);
            mask = mask ? *mask & inside : inside;
        }
        const Place place{b,
                          h,
                          expand_dims(first + iota(block_q, i64), 1),
                          expand_dims(j * block_k + iota(block_k, i64), 0),
                          first,
                          j * block_k};
        // The checked mode needs to know which pairs exist.
        const auto existing = [&]() -> std::optional<Tile> {
            if (!options.interpret) return {};
            const Tile rows = place.q < array_extent(query, 2);
            return mask ? *mask & rows : rows;
        };
        if (features.mask) {
            const Tile inside = pairs.mask(place, existing());
            mask = mask ? *mask & inside : inside;
        }
        if (options.additive) {
            s = pairs.unscaled_score(s, place);
        } else if (features.score) {
            s = pairs.score(s, place, existing());
        }
        if (options.bounded) {
            Tile exponents = fma(s, constant(kLog2E, sums), constant(-options.mark * kLog2E, sums));
            if (mask) exponents = where(*mask, exponents, -kInfinity);
            const Tile p = exp2(exponents, true);
            const Tile kept = features.dropout > 0 ? p * pairs.keep(place, sums) : p;
            return State{state.mark, state.sum + sum(p, 1),
                         product(options, kept.to(value.dtype()),
                                 value.at(block).load(existing_rows), {.acc = state.out})};
        }
        if (mask) s = where(*mask, s, -kInfinity);
        if (options.row_sums) {
            const Tile high = maximum(state.mark, max(s, 1));
            const Tile old = exp2((state.mark - high) * kLog2E),
                       added = sum(exp2((s - expand_dims(high, 1)) * kLog2E), 1);
            return State{high, fma(state.sum, old, added), state.out};
        }
        const Tile mark = exponent.next_mark(state.mark, max(s, 1));
        const Tile p = exp2(
            fma(s, expand_dims(exponent.factor(mark), 1), expand_dims(-exponent.offset(mark), 1)),
            true);
        const Tile alpha = exponent.decay(state.mark, mark, true);
        const Tile kept = features.dropout > 0 ? p * pairs.keep(place, sums) : p;
        Tile v = value.at(block).load(existing_rows);
        const Tile weights = kept.to(value.dtype());
        const DotOptions sum_up{.acc = state.out * expand_dims(alpha, 1)};
        if (isolated && mask && options.gpu) {
            const Tile pairs_of_rows = *mask & (place.q < array_extent(query, 2));
            v = rows_that_any_attends(v, broadcast_to(pairs_of_rows, s.shape()));
        }
        return State{
            mark, fma(state.sum, alpha, sum(p, 1)),
            isolated && mask && !options.gpu
                ? dot_of_attending(weights, v, broadcast_to(*mask, s.shape()), true, sum_up)
                : product(options, weights, v, sum_up)};
    };
    /// Visits those of the blocks [begin, end) that are this program's.
    const auto visit = [&](const Options& sizes, Tile begin, Tile end, State state,
                           const std::function<State(Tile, State)>& body) {
        if (options.split_k > 0) {
            const std::int64_t blocks = options.split_k / sizes.block_k;
            begin = maximum(begin, program_id(3) * blocks);
            end = minimum(end, program_id(3) * blocks + blocks);
        }
        return for_loop(begin, end, state, body);
    };
    const auto range = [&](const Options& sizes, Tile begin, Tile end, State state, bool analytic) {
        return visit(sizes, begin, end, state,
                     [&](Tile j, State s) { return step(sizes, j, s, analytic, {}); });
    };

    const auto first_state = [&] {
        if (options.row_sums) {
            const double lowest = sums == f64 ? std::numeric_limits<double>::lowest()
                                              : std::numeric_limits<float>::lowest();
            return State{full({block_q}, lowest, sums), zeros({block_q}, sums), constant(0, sums)};
        }
        return State{
            options.bounded ? full({block_q}, options.mark, sums) : exponent.first_mark(block_q),
            zeros({block_q}, sums), zeros({block_q, value.shape()[1]}, sums)};
    };
    const auto scan = [&] {
        State state = first_state();
        if (features.plan) {
            // The plan knows where the arrays end; masks given in addition to it are still to be
            // tested.
            const bool analytic = segments || options.right() >= 0 || options.window_left >= 0;
            const std::int64_t block_k = options.block_k;
            const PlanRow row = pairs.plan_row(b, h, program_id(2));
            const Ref partial = pairs.extra(Extra::partial), runs = pairs.extra(Extra::full),
                      bits = pairs.extra(Extra::bits);
            state = for_loop(row.partial_begin, row.partial_end, state, [&](Tile e, State s) {
                const auto masked = [&](Tile j, State inner) {
                    return step(options, j, inner, analytic || features.lengths,
                                bits.at(partial.at(e, 1).load()).load());
                };
                const Tile j = partial.at(e, 0).load().to(i64);
                return options.split_k > 0 ? visit(options, j, j + 1, s, masked) : masked(j, s);
            });
            state = for_loop(row.full_begin, row.full_end, state, [&](Tile e, State s) {
                const Tile begin = runs.at(e, 0).load().to(i64);
                const Tile end = begin + runs.at(e, 1).load().to(i64);
                if (!features.lengths) return range(options, begin, end, s, analytic);
                const Tile full_end = minimum(end, kv_length / block_k);
                s = range(options, begin, full_end, s, analytic);
                return range(options, maximum(begin, full_end),
                             minimum(end, cdiv(kv_length, block_k)), s, true);
            });
        } else if (segments || options.guarded || (options.interpret && features.positions())) {
            const BlockRange blocks = kv_blocks(options, first, kv_length);
            state = range(options, blocks.begin, blocks.end, state, true);
        } else {
            Options edge = options;
            if (options.edge_k > 0) edge.block_k = options.edge_k;
            const std::int64_t ratio = options.block_k / edge.block_k;
            const BlockRange blocks = kv_blocks(options, first, kv_length);
            const BlockRange edges = kv_blocks(edge, first, kv_length);
            if (options.window_left >= 0) {
                const Tile end = minimum(blocks.full_begin * ratio, edges.end);
                state = range(edge, edges.begin, end, state, true);
            }
            state = range(options, blocks.full_begin, blocks.full_end, state, false);
            state = range(edge, blocks.full_end * ratio, edges.end, state, true);
        }
        return state;
    };
    // On a GPU one loop over short blocks takes fewer registers than the loops above.
    const auto scan_isolated = [&] {
        Options sizes = options;
        sizes.block_k = std::min<std::int64_t>(options.block_k, 16);
        const std::int64_t ratio = options.block_k / sizes.block_k;
        if (!features.plan) {
            const BlockRange blocks = kv_blocks(sizes, first, kv_length);
            return range(sizes, blocks.begin, blocks.end, first_state(), true);
        }
        const PlanRow row = pairs.plan_row(b, h, program_id(2));
        const Ref partial = pairs.extra(Extra::partial), runs = pairs.extra(Extra::full),
                  bits = pairs.extra(Extra::bits);
        const Tile num_partial = row.partial_end - row.partial_begin;
        return for_loop(
            0, num_partial + (row.full_end - row.full_begin), first_state(),
            [&](Tile e, State outer) {
                const Tile is_partial = e < num_partial;
                const auto entry = [&](const Ref& ref, Tile at, int field, bool wanted) {
                    const Tile reads = wanted ? is_partial : e >= num_partial;
                    return ref.at(at, field).load({.mask = reads, .other = 0}).to(i64);
                };
                const Tile p = row.partial_begin + e, f = row.full_begin + (e - num_partial);
                const Tile begin = entry(partial, p, 0, true) + entry(runs, f, 0, false);
                const Tile blocks = where(is_partial, 1, entry(runs, f, 1, false));
                const Tile atom = entry(partial, p, 1, true);
                return visit(
                    sizes, begin * ratio,
                    minimum((begin + blocks) * ratio, cdiv(kv_length, sizes.block_k)), outer,
                    [&](Tile j, State s) {
                        const Slice columns =
                            ds((j - begin * ratio) * sizes.block_k, sizes.block_k);
                        const Tile inside =
                            bits.at(atom, all, columns).load({.mask = is_partial, .other = 1});
                        return step(sizes, j, s, true, inside);
                    });
            });
    };
    if (options.row_sums) {
        const Ref shift = out, log_sum = lse;
        const Tile given = refs[num_inputs - 1].load({.other = 0}).to(sums);
        const Tile large = (abs(given) >= kInexactLse) & (abs(given) < kInfinity);
        State state = cond(any(large, 0), scan, first_state);
        if (features.sinks) {
            const Tile sink = sinks.load().to(sums), top = maximum(state.mark, sink);
            state.sum = fma(state.sum, exp(state.mark - top), exp(sink - top));
            state.mark = top;
        }
        const Tile nothing = state.sum == 0;
        shift.store(where(large & (nothing == constant(false, boolean)), state.mark, 0.0));
        log_sum.store(where(large, where(nothing, -kInfinity, log(state.sum)), given));
        return;
    }
    const auto finish = [&](State state) {
        if (options.split_k > 0) {
            const Ref max_ref = lse, mark_ref = refs[num_inputs + 2], sum_ref = refs.back();
            out.store(state.out);
            max_ref.store(exponent.high(state.mark) * unit);
            mark_ref.store(state.mark);
            sum_ref.store(state.sum);
            return;
        }
        Tile high = exponent.high(state.mark) * unit;
        const Tile nothing = state.sum == 0;
        max_scores.store(where(nothing, -kInfinity, high));
        if (features.sinks) {
            const Tile sink = sinks.load().to(sums), top = maximum(high, sink);
            const Tile alpha = exp(high - top);
            state.sum = fma(state.sum, alpha, exp(sink - top));
            state.out = state.out * expand_dims(alpha, 1);
            high = top;
        }
        const Tile empty = state.sum == 0;
        const Tile inverse = where(empty, 0.0, 1.0 / state.sum);
        out.store((state.out * expand_dims(inverse, 1)).to(out.dtype()));
        lse.store(where(empty, -kInfinity, high + log(state.sum)));
    };
    if (options.isolation == Isolation::repair) {
        isolated = true;
        when(any_not_finite(out.load({.other = 0})), [&] { finish(scan_isolated()); });
        return;
    }
    State state = scan();
    const bool isolates =
        options.gpu ? options.isolation == Isolation::inside && features.hides_keys(options)
                    : features.masks(options);
    if (!isolated && isolates) {
        isolated = true;
        state = cond(
            any_not_finite(state.out), [&] { return options.gpu ? scan_isolated() : scan(); },
            [&] { return state; });
    }
    finish(state);
}

}  // namespace

Call forward(const Options& options, const Features& features, bool dynamic_queries) {
    const std::int64_t block_q = options.block_q, group = options.group;
    // Where keys are split, the grid has a fourth axis.
    const auto query_row = [](auto b, auto h, auto i, auto...) { return block(b, h, i, 0); };
    const auto kv_head = [group](auto b, auto h, auto...) { return block(b, h / group, 0, 0); };
    const auto row = [](auto b, auto h, auto i) { return block(b, h, i); };
    const BlockSpec q_ids({squeezed, block_q},
                          [](auto b, auto, auto i, auto...) { return block(b, i); });
    const BlockSpec kv_ids({squeezed, all}, [](auto b, auto, auto...) { return block(b, 0); });
    const BlockSpec statistics({squeezed, squeezed, block_q}, row);

    CallOptions call_options;
    call_options.grid = [block_q](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{in[0].dim(0), in[0].dim(1),
                                         ceil_div(in[0].dim(2), block_q)};
    };
    call_options.in = {
        BlockSpec({squeezed, squeezed, block_q, all}, query_row),
        BlockSpec({squeezed, squeezed, all, all}, kv_head),
        BlockSpec({squeezed, squeezed, all, all}, kv_head),
        features.segments ? q_ids : BlockSpec::absent(),
        features.segments ? kv_ids : BlockSpec::absent(),
        features.sinks ? BlockSpec({squeezed}, [](auto, auto h, auto...) { return block(h); })
                       : BlockSpec::absent(),
    };
    std::vector<std::string> names{"query",          "key",  "value", "segment_ids",
                                   "kv_segment_ids", "sinks"};
    const bool repairs = options.isolation == Isolation::repair;
    call_options.out = {BlockSpec({squeezed, squeezed, block_q, all}, query_row), statistics,
                        statistics};
    call_options.out_type = [](std::span<const Tensor> in) {
        const Tensor &q = in[0], &v = in[2];
        const TensorType row_type{accumulator(q.dtype()), {q.dim(0), q.dim(1), q.dim(2)}};
        return std::vector<TensorType>{
            {v.dtype(), {q.dim(0), q.dim(1), q.dim(2), v.dim(3)}}, row_type, row_type};
    };
    const std::vector<int> rows = dynamic_queries ? std::vector{0, 1, 2} : std::vector{0, 1};
    call_options.dynamic = {{0, rows}, {1, {0, 1, 2}}, {2, {0, 1, 2}}};
    if (features.segments) {
        call_options.dynamic[3] = dynamic_queries ? std::vector<int>{0, 1} : std::vector<int>{0};
        call_options.dynamic[4] = {0, 1};
    }
    if (features.sinks) call_options.dynamic[5] = {0};
    add_extras(features, call_options, names);
    if (repairs) {  // these three keep their contents where the program stores nothing
        for (int output = 0; output < 3; ++output) {
            const auto input = static_cast<int>(names.size());
            call_options.in.push_back(call_options.out[output]);
            call_options.aliases.push_back({input, output});
            call_options.dynamic[input] = rows;
            names.emplace_back("given");
        }
    }
    if (options.split_k > 0) {
        const std::int64_t split_k = options.split_k;
        const auto part = [](auto b, auto h, auto i, auto c) { return block(b, h, c, i); };
        const BlockSpec numbers({squeezed, squeezed, squeezed, block_q}, part);
        call_options.grid = [block_q, split_k](std::span<const Tensor> in) {
            return std::vector<std::int64_t>{in[0].dim(0), in[0].dim(1),
                                             ceil_div(in[0].dim(2), block_q),
                                             ceil_div(in[1].dim(2), split_k)};
        };
        call_options.out = {
            BlockSpec({squeezed, squeezed, squeezed, block_q, all},
                      [](auto b, auto h, auto i, auto c) { return block(b, h, c, i, 0); }),
            numbers, numbers, numbers};
        call_options.out_type = [split_k](std::span<const Tensor> in) {
            const PartShapes shapes =
                part_shapes(in[0].shape(), in[1].dim(2), split_k, in[2].dim(3));
            const DType sums = accumulator(in[0].dtype());
            return std::vector<TensorType>{
                {sums, shapes.out}, {sums, shapes.rows}, {sums, shapes.rows}, {sums, shapes.rows}};
        };
    }
    if (options.row_sums) {
        call_options.out = {statistics, statistics};
        call_options.out_type = [](std::span<const Tensor> in) {
            const Tensor& q = in[0];
            return std::vector<TensorType>(
                2, {accumulator(q.dtype()), {q.dim(0), q.dim(1), q.dim(2)}});
        };
        call_options.in.push_back(statistics);
        call_options.dynamic[static_cast<int>(names.size())] = rows;
        names.emplace_back("given");
    }
    const auto num_inputs = static_cast<int>(names.size());
    const std::vector<std::string> outputs =
        options.row_sums      ? std::vector<std::string>{"shift", "log_sum"}
        : options.split_k > 0 ? std::vector<std::string>{"out", "max", "mark", "sum"}
                              : std::vector<std::string>{"out", "lse", "max_scores"};
    for (int output = 0; output < std::ssize(outputs); ++output) {
        call_options.dynamic[num_inputs + output] = rows;
        if (options.split_k == 0) continue;
        call_options.dynamic[num_inputs + output] =
            dynamic_queries ? std::vector{0, 1, 2, 3} : std::vector{0, 1, 2};
    }
    names.insert(names.end(), outputs.begin(), outputs.end());
    call_options.num_warps = options.num_warps;
    call_options.num_stages = options.num_stages;
    call_options.interpret = options.interpret;
    const char* const kernel_name = options.row_sums ? "attention_row_sums" : "attention";
    return call(kernel(kernel_name, distinct(std::move(names)),
                       [options, features](std::span<const Ref> refs) {
                           forward_program(options, features, refs);
                       }),
                call_options);
}

Call row_sums(Options options, const Features& features, bool dynamic_queries) {
    options.row_sums = true;
    return forward(options, features, dynamic_queries);
}

}  // namespace tilewright::attn::tiles
