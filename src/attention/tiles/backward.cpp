// Attention backward: outer loop over kv blocks, inner loop over query blocks, five GEMMs per pair.
#include "attention/tiles/backward.h"

#include <limits>
#include <numeric>
#include <optional>

#include "attention/tiles/fragments.h"
#include "attention/tiles/pairs.h"
#include "support/check.h"
#include "support/integer.h"

namespace tilewright::attn::tiles {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kLeastKeysOfSplit = 512;  ///< on a CPU; blocks of keys are no longer

/// True where the first blocks of queries that attend to a block of keys attend to none of its
/// second half, whose products are then left out. One more copy of the loop is worth it without
/// mods.
bool halves_at_diagonal(const Options& options, const Features& features) {
    return !options.gpu && !options.interpret && options.right() >= 0 && options.window_left < 0 &&
           !features.plan && !features.segments && !features.lengths && !features.score &&
           !features.mask && features.dropout == 0 && options.block_k % 2 == 0 &&
           options.block_q <= options.block_k / 2;
}

/// Gradients of a block of keys and values.
struct State {
    Tile key;    ///< [block_k, E], not yet multiplied by the scale
    Tile value;  ///< [block_k, Ev]; a gradient that is not wanted is a scalar
};

/// A block of keys and values, or the first half of one.
struct Keys {
    std::int64_t count = 0;
    Tile k, v,
        scaled;  ///< [count, E], [count, Ev]; `scaled`: k, times the scale where it is wanted
    Tile positions, ids;
};

/// The Refs to which the gradients of captures are added.
struct Buffers {
    const ScoreDerivative& derivative;
    std::span<const Ref> refs;  ///< one per buffer

    /// Adds the gradients from one tile of pairs whose first positions are `q` and `kv`.
    void add(const std::vector<Tile>& results, Tile nonzero, Tile q, Tile kv) const {
        for (const ScoreGather& gather : derivative.gathers) {
            add(gather, results, where(nonzero, results[gather.value], 0.0), q, kv);
        }
    }

  private:
    /// The copy of the buffer that this program adds to.
    Tile copy(const GradientBuffer& buffer) const {
        Tile index = buffer.by_batch ? constant(0, i64) : program_id(0);
        if (!buffer.by_head) index = index * num_programs(1) + program_id(1);
        return buffer.by_key ? index : index * num_programs(2) + program_id(2);
    }

    void add(const ScoreGather& gather, const std::vector<Tile>& results, Tile value, Tile q,
             Tile kv) const {
        std::vector<Tile> indices;
        bool by_rows = false, by_columns = false, plain = true;
        for (std::size_t d = 0; d < gather.indices.size(); ++d) {
            const Tile index = results[gather.indices[d]];
            indices.push_back(index);
            if (index.rank() == 0) continue;
            by_rows |= index.dim(0) > 1;
            by_columns |= index.dim(1) > 1;
            plain &= gather.coordinates[d] == Coordinate::query ||
                     gather.coordinates[d] == Coordinate::key;
        }
        const Ref& ref = refs[gather.buffer];
        std::vector<RefIndex> at{copy(derivative.buffers[gather.buffer])};
        const std::int64_t rows = value.dim(0), columns = value.dim(1);
        value = value.to(ref.dtype());
        if (!by_columns) value = sum(value, 1, true);
        if (!by_rows) value = sum(value, 0, true);
        if (plain) {
            // A block of the array: added in place.
            std::vector<Coordinate> order;
            for (std::size_t d = 0; d < indices.size(); ++d) {
                if (indices[d].rank() == 0) {
                    at.emplace_back(indices[d]);
                } else if (gather.coordinates[d] == Coordinate::query) {
                    at.emplace_back(ds(q, rows));
                } else {
                    at.emplace_back(ds(kv, columns));
                }
                if (indices[d].rank() > 0) order.push_back(gather.coordinates[d]);
            }
            if (order.size() == 2 && order[0] == Coordinate::key) value = transpose(value);
            if (order.size() == 1) value = reshape(value, {value.size()});
            if (order.empty()) value = reshape(value, {});
            const Ref place = ref.select(at);
            place.store(place.load({.other = 0}) + value);
            return;
        }
        for (const Tile& index : indices) at.emplace_back(index);
        ref.select(at).atomic_add(value);
    }
};

void backward_program(const Options& options, const Features& features,
                      const ScoreDerivative& derivative, std::span<const Ref> refs) {
    const Ref query = refs[0], key = refs[1], value = refs[2], dout = refs[3], log2_sum = refs[4],
              delta = refs[5], query_ids = refs[6], kv_ids = refs[7];
    const std::size_t num_extra = num_extras(features);
    const std::size_t first_output =
        8 + num_extra + derivative.buffers.size() + (options.fragments ? 1 : 0);
    std::size_t output = first_output;
    const auto next = [&](bool wanted) { return wanted ? refs[output++] : refs[0]; };
    const Ref dq = next(options.query_gradient), dk = next(options.key_gradient),
              dv = next(options.value_gradient);
    const Pairs pairs(options, features, refs.subspan(8, num_extra));
    const Buffers buffers{derivative, refs.subspan(output)};
    const bool segments = features.segments;
    const DType sums = accumulator(query.dtype());
    const std::int64_t block_q = options.block_q, block_k = options.block_k;
    const std::int64_t head_dim = key.shape()[1], value_dim = value.shape()[1];
    const Tile query_length = query.extent(1), kv_length = pairs.kv_length(key.extent(0));
    const Tile b = pairs.batch(program_id(0));

    // As in the forward program: a second form of the loops if arrays hold infinities or NaN, or if
    // rows have large scores.
    const bool may_isolate = !options.gpu && features.masks(options), may_shift = features.shifted;
    const bool may_differ = (may_isolate || may_shift) && !options.interpret;
    bool isolated = may_isolate && options.interpret, shifted = may_shift && options.interpret;
    Tile differs = constant(false, boolean);

    // On a GPU, keys that no query attends to must not reach dQ, whatever they hold: infinities and
    // NaN in keys and values become 0 as a block is loaded. Queries that do attend to them have NaN
    // in lse or delta, and so in all of their gradients. Diagonals hide no keys.
    const bool cleans_keys =
        options.gpu && (features.segments || features.plan || bool(features.mask));

    const bool writes_first = writes_first_products(options, features);

    /// Rows of keys or values; rows past the length of a batch are 0.
    const auto load_rows = [&](const Ref& ref, Tile first, std::int64_t count) {
        LoadOptions rows{.other = 0};
        if (features.lengths) rows.mask = expand_dims(first + iota(count, i64), 1) < kv_length;
        const Tile x = ref.at(ds(first, count)).load(rows);
        return cleans_keys ? finite(x) : x;
    };
    const bool scale_keys = options.scale_operand && features.score;
    const auto load_keys = [&](Tile first, std::int64_t count) {
        Keys keys;
        keys.count = count;
        keys.k = load_rows(key, first, count);
        keys.v = load_rows(value, first, count);
        keys.scaled = scale_keys ? keys.k * options.scale : keys.k;
        keys.positions = first.to(i32) + iota(count);
        if (segments) keys.ids = kv_ids.at(ds(first, count)).load({.other = 0});
        return keys;
    };
    const bool halves = halves_at_diagonal(options, features);

    // Refs of the query side hold the heads of one group: (group, L, ...).
    // With `writes`, the products of dQ are written, not added.
    const auto block_of_keys = [&](Tile j, bool writes) {
        const Tile first = j * block_k;
        const Slice kv_block = ds(first, block_k);
        const Keys all_keys = load_keys(first, block_k);

        /// Adds one block of queries of head `h` of the group; `analytic` and `bits` as in the
        /// forward program.
        const auto step = [&](const Keys& keys, Tile h, Tile i, State state, bool analytic,
                              const std::optional<Tile>& bits) {
            const Slice rows = ds(i * block_q, block_q);
            const Tile q = query.at(h, rows).load({.other = 0}),
                       d_out = dout.at(h, rows).load({.other = 0});
            // Rows past the end read +inf, so that their probabilities are 0.
            const Tile offset = log2_sum.at(h, rows).load({.other = kInfinity});
            const Tile row_delta = delta.at(h, rows).load({.other = 0});
            // Large scores must have the bits that `row_sums` saw.
            const bool are_scaled = scale_keys && !shifted;
            const Tile s =
                product(options, q, are_scaled ? keys.scaled : keys.k, {.trans_b = true});
            const Place place{b,
                              pairs.head(program_id(1) * options.group + h),
                              expand_dims(i * block_q + iota(block_q, i64), 1),
                              expand_dims(first + iota(keys.count, i64), 0),
                              i * block_q,
                              first};
            std::optional<Tile> mask = bits;
            if (analytic) {
                const Tile q_positions = (i * block_q).to(i32) + iota(block_q);
                const Tile q_ids = segments ? query_ids.at(rows).load({.other = 0}) : Tile();
                Options sizes = options;
                sizes.block_k = keys.count;
                const Tile inside = attends(sizes, q_positions, keys.positions, kv_length, segments,
                                            q_ids, keys.ids);
                mask = mask ? *mask & inside : inside;
            }
            const auto existing = [&]() -> std::optional<Tile> {
                if (!options.interpret) return {};
                const Tile there = place.q < query_length;
                return mask ? *mask & there : there;
            };
            if (features.mask) {
                const Tile inside = pairs.mask(place, existing());
                mask = mask ? *mask & inside : inside;
            }
            if (isolated && mask) {
                mask = broadcast_to(*mask & (place.q < query_length), {block_q, keys.count});
            }
            const auto weighted = [&](const Tile& weights, const Tile& x, bool positive,
                                      const DotOptions& dot_options) {
                return isolated && mask ? dot_of_attending(weights, x, *mask, positive, dot_options)
                                        : product(options, weights, x, dot_options);
            };
            Tile scaled, score = s;
            double unit = options.scale;
            if (features.score) {
                unit = 1;
                scaled = are_scaled ? s : s * options.scale;
                score = pairs.score(scaled, place, existing());
            }
            Tile shift;
            if (shifted) {
                const Ref shifts = pairs.extra(Extra::shift);
                shift = shifts.at(program_id(0), program_id(1) * options.group + h, rows)
                            .load({.other = 0});
                shift = expand_dims(shift, 1);
                score = (features.score ? score : s * options.scale) - shift;
                unit = 1;
            }
            Tile exponent = fma(score, kLog2E * unit, expand_dims(-offset, 1));
            // The shift is the largest score, so exponents must not be positive.
            if (shifted) exponent = where(shift == 0, exponent, minimum(exponent, 0.0));
            Tile p = exp2(exponent, true);
            if (mask) p = where(*mask, p, 0.0);
            Tile dp = product(options, d_out, keys.v, {.trans_b = true}), kept = p;
            if (features.dropout > 0) {
                const Tile keep = pairs.keep(place, sums);
                dp = dp * keep;
                kept = p * keep;
            }
            Tile d_score = p * (dp - expand_dims(row_delta, 1));
            if (isolated && mask) d_score = where(*mask, d_score, 0.0);
            if (features.score && !derivative.is_identity) {
                const std::vector<Tile> results =
                    pairs.score_gradient(derivative, scaled, place, d_score);
                // Where the probability is 0, the mod's derivative may be anything.
                const Tile nonzero = p != 0;
                d_score = where(nonzero, results[0], 0.0);
                buffers.add(results, nonzero, i * block_q, first);
            }
            d_score = d_score.to(key.dtype());
            if (!options.query_gradient) {
                // There is nothing to add to.
            } else if (options.fragments) {
                dq.at(h, i).atomic_add(in_fragments(product(options, d_score, keys.k, {})));
            } else {
                const Ref dq_rows = dq.at(h, rows);
                DotOptions sum;
                if (!writes) sum.acc = dq_rows.load({.other = 0});
                dq_rows.store(weighted(d_score, keys.k, false, sum));
            }
            if (options.key_gradient) {
                state.key = weighted(d_score, q, false, {.trans_a = true, .acc = state.key});
            }
            if (options.value_gradient) {
                state.value = weighted(kept.to(value.dtype()), d_out, true,
                                       {.trans_a = true, .acc = state.value});
            }
            return state;
        };
        const auto range = [&](Tile h, Tile begin, Tile end, State state, bool analytic) {
            return for_loop(begin, end, state,
                            [&](Tile i, State s) { return step(all_keys, h, i, s, analytic, {}); });
        };
        const auto none = [&](bool wanted, std::int64_t rows, std::int64_t width) {
            return wanted ? zeros({rows, width}, sums) : constant(0, sums);
        };
        const auto no_gradients = [&](std::int64_t rows) {
            return State{none(options.key_gradient, rows, head_dim),
                         none(options.value_gradient, rows, value_dim)};
        };
        /// The state after the blocks [begin, end) of queries that attend to none of the second
        /// half of the keys.
        const auto scan_half = [&](Tile begin, Tile end) {
            const std::int64_t half = block_k / 2;
            const Keys keys = load_keys(first, half);
            State state = for_loop(0, options.group, no_gradients(half), [&](Tile h, State outer) {
                return for_loop(begin, end, outer,
                                [&](Tile i, State s) { return step(keys, h, i, s, true, {}); });
            });
            const State rest = no_gradients(half);
            if (options.key_gradient) state.key = concatenate({state.key, rest.key}, 0);
            if (options.value_gradient) state.value = concatenate({state.value, rest.value}, 0);
            return state;
        };
        const auto scan = [&] {
            if (features.plan) {
                State state = no_gradients(block_k);
                // In a full tile, the block of keys may extend past the array, which matters to
                // mods.
                const bool analytic = segments || options.right() >= 0 ||
                                      options.window_left >= 0 || features.positions() ||
                                      features.lengths;
                const Ref partial = pairs.extra(Extra::partial), runs = pairs.extra(Extra::full),
                          bits = pairs.extra(Extra::bits);
                return for_loop(0, options.group, state, [&](Tile h, State outer) {
                    const PlanRow row =
                        pairs.plan_row(b, pairs.head(program_id(1) * options.group + h), j);
                    outer =
                        for_loop(row.partial_begin, row.partial_end, outer, [&](Tile e, State s) {
                            return step(all_keys, h, partial.at(e, 0).load().to(i64), s, analytic,
                                        bits.at(partial.at(e, 1).load()).load());
                        });
                    return for_loop(row.full_begin, row.full_end, outer, [&](Tile e, State s) {
                        const Tile begin = runs.at(e, 0).load().to(i64);
                        return range(h, begin, begin + runs.at(e, 1).load().to(i64), s, analytic);
                    });
                });
            }
            const BlockRange blocks =
                query_blocks(options, first, query_length, kv_length, features.lengths);
            Tile begin = blocks.begin;
            State state;
            if (halves && !isolated && !shifted) {
                const Tile end = maximum(first + (block_k / 2 - options.right()), 0) / block_q;
                begin = minimum(maximum(end, blocks.begin), blocks.full_begin);
                state = scan_half(blocks.begin, begin);
            } else {
                state = no_gradients(block_k);
            }
            return for_loop(0, options.group, state, [&](Tile h, State s) {
                if (segments) return range(h, blocks.begin, blocks.end, s, true);
                s = range(h, begin, blocks.full_begin, s, true);
                s = range(h, blocks.full_begin, blocks.full_end, s, false);
                // Without a window no blocks are left: see query_blocks.
                return options.window_left < 0 ? s : range(h, blocks.full_end, blocks.end, s, true);
            });
        };
        const auto scan_differently = [&] {
            isolated = may_isolate;
            shifted = may_shift;
            const State state = scan();
            isolated = shifted = false;
            return state;
        };
        const State state = may_differ ? cond(differs, scan_differently, scan) : scan();
        if (options.key_gradient) {
            dk.at(kv_block).store((state.key * options.scale).to(dk.dtype()));
        }
        if (options.value_gradient) dv.at(kv_block).store(state.value.to(dv.dtype()));
    };
    if (options.unordered) {
        block_of_keys(program_id(2), false);
        return;
    }
    if (!options.fragments) {
        const bool looks = looks_for_infinities(options, features);
        const Tile num_blocks = cdiv(query_length, block_q);
        differs = for_loop(0, options.group, differs, [&](Tile h, Tile found) {
            if (options.query_gradient && !writes_first) {
                for_loop(0, num_blocks, [&](Tile i) {
                    dq.at(h, ds(i * block_q, block_q)).store(zeros({block_q, head_dim}, sums));
                });
            }
            if (!looks && !(may_shift && may_differ)) return found;
            return for_loop(0, num_blocks, found, [&](Tile i, Tile so_far) {
                const Slice rows = ds(i * block_q, block_q);
                if (may_shift && may_differ) {
                    const Ref shifts = pairs.extra(Extra::shift);
                    const Ref these =
                        shifts.at(program_id(0), program_id(1) * options.group + h, rows);
                    so_far = so_far | any(these.load({.other = 0}) != 0, 0);
                }
                if (!looks) return so_far;
                const Ref blocks = pairs.extra(Extra::not_finite);
                return so_far |
                       blocks.at(program_id(0), program_id(1) * options.group + h, i).load();
            });
        });
        if (looks) {
            differs = for_loop(program_id(2), cdiv(key.extent(0), block_k), num_programs(2),
                               differs, [&](Tile j, Tile found) {
                                   const Tile at = j * block_k;
                                   const Tile k = zero_or_nan(load_rows(key, at, block_k), sums),
                                              v = zero_or_nan(load_rows(value, at, block_k), sums);
                                   return found | ((sum(k + v) == 0) == constant(false, boolean));
                               });
        }
    }
    const Tile end = cdiv(key.extent(0), block_k);
    Tile begin = program_id(2);
    if (writes_first) {
        for_loop(begin, minimum(begin + 1, end), [&](Tile j) { block_of_keys(j, true); });
        begin = begin + num_programs(2);
    }
    for_loop(begin, end, num_programs(2), [&](Tile j) { block_of_keys(j, false); });
}

}  // namespace

bool looks_for_infinities(const Options& options, const Features& features) {
    return !options.gpu && !options.interpret && features.masks(options);
}

bool writes_first_products(const Options& options, const Features& features) {
    return options.query_gradient && !options.gpu && !features.plan && !features.segments &&
           !features.lengths && options.window_left < 0 && options.block_k <= kLeastKeysOfSplit;
}

std::int64_t num_splits(bool gpu, std::int64_t batch, std::int64_t kv_heads,
                        std::int64_t kv_length) {
    const std::int64_t programs = gpu ? 256 : 48, least_keys = gpu ? 128 : kLeastKeysOfSplit,
                       most = gpu ? 256 : 16;
    const std::int64_t parts = std::clamp<std::int64_t>(ceil_div(kv_length, least_keys), 1, most);
    return std::clamp<std::int64_t>(programs / std::max<std::int64_t>(batch * kv_heads, 1), 1,
                                    parts);
}

Call backward(const Options& options, const Features& features, const ScoreDerivative& derivative) {
    const std::int64_t group = options.group;
    const BlockSpec query_rows({squeezed, group, all, all},
                               [](auto b, auto h, auto) { return block(b, h, 0, 0); });
    const BlockSpec kv_rows({squeezed, squeezed, all, all},
                            [](auto b, auto h, auto) { return block(b, h, 0, 0); });
    const BlockSpec statistics({squeezed, group, all},
                               [](auto b, auto h, auto) { return block(b, h, 0); });
    const BlockSpec ids({squeezed, all}, [](auto b, auto, auto) { return block(b, 0); });
    const BlockSpec own_parts({squeezed, squeezed, group, all, all},
                              [](auto b, auto h, auto s) { return block(s, b, h, 0, 0); });
    const BlockSpec one_part({squeezed, squeezed, group, all, all},
                             [](auto b, auto h, auto) { return block(0, b, h, 0, 0); });
    const BlockSpec& parts = options.unordered ? one_part : own_parts;
    const BlockSpec optional_ids = features.segments ? ids : BlockSpec::absent();

    CallOptions call_options;
    const auto splits = [options](const Tensor& key) {
        return num_splits(options.gpu, key.dim(0), key.dim(1), key.dim(2));
    };
    call_options.grid = [splits, options](std::span<const Tensor> in) {
        const std::int64_t blocks = ceil_div(in[1].dim(2), options.block_k);
        return std::vector<std::int64_t>{in[1].dim(0), in[1].dim(1),
                                         options.unordered ? blocks : splits(in[1])};
    };
    call_options.in = {query_rows, kv_rows,    kv_rows,      query_rows,
                       statistics, statistics, optional_ids, optional_ids};
    std::vector<std::string> names{"query",    "key",   "value",       "dout",
                                   "log2_sum", "delta", "segment_ids", "kv_segment_ids"};
    call_options.dynamic = {{0, {0, 1, 2}}, {1, {0, 1, 2}}, {2, {0, 1, 2}},
                            {3, {0, 1, 2}}, {4, {0, 1, 2}}, {5, {0, 1, 2}}};
    if (features.segments) call_options.dynamic[6] = call_options.dynamic[7] = {0, 1};
    add_extras(features, call_options, names, looks_for_infinities(options, features));
    const std::size_t first_buffer = call_options.in.size(), buffers = derivative.buffers.size();
    std::vector<std::string> outputs;
    const auto add_output = [&](bool wanted, const BlockSpec& spec, const char* name) {
        if (!wanted) return;
        call_options.out.push_back(spec);
        outputs.emplace_back(name);
    };
    add_output(options.query_gradient, parts, "dq_parts");
    add_output(options.key_gradient, kv_rows, "dk");
    add_output(options.value_gradient, kv_rows, "dv");
    const auto num_own = static_cast<int>(outputs.size());
    for (std::size_t i = 0; i < buffers; ++i) {
        call_options.in.emplace_back();
        call_options.out.emplace_back();
        names.push_back(fmt::format("gradients{}", i));
        outputs.push_back(fmt::format("added_gradients{}", i));
        const int input = static_cast<int>(first_buffer + i),
                  output = num_own + static_cast<int>(i);
        call_options.aliases.push_back({input, output});
        // Outputs are numbered after the inputs. A buffer's array may have any extents.
        std::vector<int> dims(derivative.buffers[i].rank + 1);
        std::iota(dims.begin(), dims.end(), 0);
        call_options.dynamic[input] = dims;
        call_options.dynamic[static_cast<int>(first_buffer + buffers) + output +
                             (options.fragments ? 1 : 0)] = dims;
    }
    auto num_inputs = static_cast<int>(first_buffer + buffers);
    if (options.fragments) {
        call_options.in.push_back(parts);
        names.emplace_back("dq_zeros");
        call_options.aliases.push_back({num_inputs, 0});
        call_options.dynamic[num_inputs] = {0, 1, 2, 3};
        ++num_inputs;
    }
    for (int i = 0; i < num_own; ++i) {
        call_options.dynamic[num_inputs + i] = {0, 1, 2};
        if (i == 0 && options.query_gradient) call_options.dynamic[num_inputs] = {0, 1, 2, 3};
    }
    names.insert(names.end(), outputs.begin(), outputs.end());
    call_options.out_type = [options, splits, first_buffer, buffers](std::span<const Tensor> in) {
        std::vector<std::int64_t> shape = in[0].shape();
        if (options.fragments) {
            shape = in[first_buffer + buffers].shape();
        } else {
            shape.insert(shape.begin(), splits(in[1]));
        }
        std::vector<TensorType> types;
        if (options.query_gradient) types.push_back({accumulator(in[0].dtype()), shape});
        if (options.key_gradient) types.push_back({in[1].dtype(), in[1].shape()});
        if (options.value_gradient) types.push_back({in[2].dtype(), in[2].shape()});
        for (std::size_t i = 0; i < buffers; ++i) {
            types.push_back({in[first_buffer + i].dtype(), in[first_buffer + i].shape()});
        }
        return types;
    };
    call_options.num_warps = options.num_warps;
    call_options.num_stages = options.num_stages;
    call_options.interpret = options.interpret;
    return call(kernel("attention_backward", distinct(std::move(names)),
                       [options, features, derivative](std::span<const Ref> refs) {
                           backward_program(options, features, derivative, refs);
                       }),
                call_options);
}

}  // namespace tilewright::attn::tiles
