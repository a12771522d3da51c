// Attention in the form of JAX's Pallas `attention` module: one forward kernel, one that computes
// delta, and one backward kernel with two scans. Arrays are (batch, sequence, heads, dim).
//
// Programs should use tw::attention; this shows the language on a well-known kernel.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "check.h"

namespace examples {

namespace tw = tilewright;

/// Finite, so that a fully masked row gives an average and not NaN.
inline const double kMaskValue = -0.7 * std::numeric_limits<float>::max();
inline constexpr double kLog2E = 1.44269504088896340736;

/// The parameters of Pallas' mha.
struct MhaOptions {
    double sm_scale = 1.0;
    bool causal = false;
    std::int64_t block_q = 128, block_k = 128;  ///< clipped to the lengths
    int num_warps = 0, num_stages = 2;          ///< hints for GPUs
    std::vector<std::int64_t> grid = {};        ///< empty: (query blocks, batch, heads)
    bool interpret = false;                     ///< the checked mode
    bool debug = false;                         ///< print the IR
};

/// Throws UserError unless the tensor is of this type; a negative extent matches any.
inline void mha_expect(const char* argument, const tw::Tensor& tensor, const tw::TensorType& type) {
    bool fits = tensor.defined() && tensor.dtype() == type.dtype &&
                tensor.shape().size() == type.shape.size();
    for (std::size_t d = 0; fits && d < type.shape.size(); ++d)
        fits = type.shape[d] < 0 || tensor.shape()[d] == type.shape[d];
    if (fits) return;
    std::string extents;
    for (const std::int64_t n : type.shape)
        extents += (extents.empty() ? "" : ", ") + (n < 0 ? "any" : std::to_string(n));
    throw tw::UserError("[mha] expected " + std::string(argument) + " of type " +
                        std::string(tw::name(type.dtype)) + "[" + extents + "] but got " +
                        (tensor.defined() ? tensor.type_name() : "nothing"));
}

/// Sizes of one problem, after clipping. Throws UserError if the arguments do not fit together.
struct MhaSizes {
    std::int64_t batch, length, kv_length, heads, dim, block_q, block_k;
    tw::DType sums;  ///< of scores, sums and statistics: f64 for f64 arrays, else f32

    MhaSizes(const tw::Tensor& q, const tw::Tensor& k, const tw::Tensor& v,
             const tw::Tensor& segment_ids, const MhaOptions& o) {
        const tw::DType dtype = q.defined() ? q.dtype() : tw::f32;
        const bool is_float =
            dtype == tw::f32 || dtype == tw::f64 || dtype == tw::f16 || dtype == tw::bf16;
        mha_expect("q", q, {is_float ? dtype : tw::f32, {-1, -1, -1, -1}});
        batch = q.dim(0), length = q.dim(1), heads = q.dim(2), dim = q.dim(3);
        mha_expect("k", k, {dtype, {batch, -1, heads, dim}});
        mha_expect("v", v, {dtype, k.shape()});
        kv_length = k.dim(1);
        if (kv_length == 0) throw tw::UserError("[mha] expected k of one key or more but got none");
        if (segment_ids.defined()) {
            // One array of ids is used for queries and keys.
            mha_expect("k with segment_ids", k, {dtype, q.shape()});
            mha_expect("segment_ids", segment_ids, {tw::i32, {batch, length}});
        }
        for (const auto& [name, size] : {std::pair("block_q", o.block_q), {"block_k", o.block_k}})
            if (size < 1)
                throw tw::UserError(std::string("[mha] expected ") + name +
                                    " of at least 1 but got " + std::to_string(size));
        block_q = std::clamp<std::int64_t>(length, 1, o.block_q);
        block_k = std::clamp<std::int64_t>(kv_length, 1, o.block_k);
        sums = dtype == tw::f64 ? tw::f64 : tw::f32;
    }
    std::int64_t blocks_q() const { return (length + block_q - 1) / block_q; }
    std::int64_t blocks_k() const { return (kv_length + block_k - 1) / block_k; }
    tw::TensorType statistics() const { return {sums, {batch, heads, length}}; }
};

/// Masked scores of a block of queries against a block of keys, to base 2.
inline tw::Tile mha_scores(const MhaOptions& o, std::int64_t kv_length, tw::Tile q, tw::Tile k,
                           tw::Tile first_q, tw::Tile first_k, const tw::Ref& segment_ids) {
    const std::int64_t block_q = q.dim(0), block_k = k.dim(0);
    const tw::Tile s = tw::dot(q, k, {.trans_b = true}) * (o.sm_scale * kLog2E);
    const tw::Tile rows = tw::expand_dims(first_q + tw::iota(block_q, tw::i64), 1);
    const tw::Tile columns = tw::expand_dims(first_k + tw::iota(block_k, tw::i64), 0);
    tw::Tile mask = columns < kv_length;
    if (o.causal) mask = mask & (columns <= rows);
    if (segment_ids.present()) {
        const tw::Tile q_ids = segment_ids.at(tw::ds(first_q, block_q)).load({.other = 0});
        const tw::Tile k_ids = segment_ids.at(tw::ds(first_k, block_k)).load({.other = 0});
        mask = mask & (tw::expand_dims(q_ids, 1) == tw::expand_dims(k_ids, 0));
    }
    return tw::where(mask, s, kMaskValue);
}

/// Returns {out, lse}; lse (batch, heads, sequence) is the residual for the backward pass, to base
/// 2 as in Pallas. Keys and values may have another length than queries (causal then counts from
/// the top left). segment_ids (batch, sequence) in i32, for equal lengths, or undefined.
inline std::array<tw::Tensor, 2> mha_forward(const tw::Tensor& q, const tw::Tensor& k,
                                             const tw::Tensor& v, const tw::Tensor& segment_ids,
                                             const MhaOptions& o) {
    struct State {
        tw::Tile max, sum, out;
    };
    const MhaSizes n(q, k, v, segment_ids, o);
    auto kernel = tw::kernel(
        "mha_forward", {"q", "k", "v", "segment_ids", "out", "lse"},
        [=](tw::Ref q_ref, tw::Ref k_ref, tw::Ref v_ref, tw::Ref ids, tw::Ref out_ref,
            tw::Ref lse_ref) {
            const tw::Tile start = tw::program_id(0), first_q = start * n.block_q;
            const tw::Tile queries = q_ref.load({.other = 0});
            // Key blocks after the last query of the block are never read.
            tw::Tile end = tw::constant(n.blocks_k(), tw::i64);
            if (o.causal) end = tw::minimum(end, tw::cdiv((start + 1) * n.block_q, n.block_k));
            const State init{tw::full({n.block_q}, -INFINITY, n.sums),
                             tw::zeros({n.block_q}, n.sums), tw::zeros({n.block_q, n.dim}, n.sums)};
            const State state = tw::for_loop(0, end, init, [&](tw::Tile i, State prev) {
                const tw::Tile first_k = i * n.block_k;
                const tw::Slice block = tw::ds(first_k, n.block_k);
                const tw::Tile s =
                    mha_scores(o, n.kv_length, queries, k_ref.at(block).load({.other = 0}), first_q,
                               first_k, ids);
                const tw::Tile max = tw::maximum(prev.max, tw::max(s, 1));
                const tw::Tile correction = tw::exp2(prev.max - max);
                const tw::Tile p = tw::exp2(s - tw::expand_dims(max, 1));
                const tw::Tile values = v_ref.at(block).load({.other = 0});
                return State{max, prev.sum * correction + tw::sum(p, 1),
                             prev.out * tw::expand_dims(correction, 1) +
                                 tw::dot(p.to(values.dtype()), values)};
            });
            out_ref.store((state.out / tw::expand_dims(state.sum, 1)).to(out_ref.dtype()));
            lse_ref.store(state.max + tw::log2(state.sum));
        });
    const tw::BlockSpec rows({tw::squeezed, n.block_q, tw::squeezed, tw::all},
                             [](auto i, auto b, auto h) { return tw::block(b, i, h, 0); });
    const tw::BlockSpec whole({tw::squeezed, tw::all, tw::squeezed, tw::all},
                              [](auto, auto b, auto h) { return tw::block(b, 0, h, 0); });
    const tw::BlockSpec ids({tw::squeezed, tw::all},
                            [](auto, auto b, auto) { return tw::block(b, 0); });
    auto call = tw::call(
        kernel,
        {
            .grid = o.grid.empty() ? std::vector{n.blocks_q(), n.batch, n.heads} : o.grid,
            .in = {rows, whole, whole, segment_ids.defined() ? ids : tw::BlockSpec::absent()},
            .out = {rows, tw::BlockSpec({tw::squeezed, tw::squeezed, n.block_q},
                                        [](auto i, auto b, auto h) { return tw::block(b, h, i); })},
            .out_type = {{q.dtype(), q.shape()}, n.statistics()},
            .num_warps = o.num_warps,
            .num_stages = o.num_stages,
            .debug = o.debug,
            .interpret = o.interpret,
        });
    return call.outputs<2>(q, k, v, segment_ids);
}

/// Returns {dq, dk, dv} from the results of the forward pass.
inline std::array<tw::Tensor, 3> mha_backward(const tw::Tensor& q, const tw::Tensor& k,
                                              const tw::Tensor& v, const tw::Tensor& segment_ids,
                                              const tw::Tensor& out, const tw::Tensor& lse,
                                              const tw::Tensor& dout, const MhaOptions& o) {
    struct Gradients {
        tw::Tile key, value;
    };
    const MhaSizes n(q, k, v, segment_ids, o);
    mha_expect("out", out, {q.dtype(), q.shape()});
    mha_expect("lse", lse, n.statistics());
    mha_expect("dout", dout, {q.dtype(), q.shape()});
    const tw::BlockSpec rows({tw::squeezed, n.block_q, tw::squeezed, tw::all},
                             [](auto i, auto b, auto h) { return tw::block(b, i, h, 0); });
    const tw::BlockSpec row_statistics({tw::squeezed, tw::squeezed, n.block_q},
                                       [](auto i, auto b, auto h) { return tw::block(b, h, i); });
    auto preprocess =
        tw::call(tw::kernel("mha_delta", {"out", "dout", "delta"},
                            [=](tw::Ref out_ref, tw::Ref dout_ref, tw::Ref delta_ref) {
                                delta_ref.store(tw::sum(out_ref.load({.other = 0}).to(n.sums) *
                                                            dout_ref.load({.other = 0}).to(n.sums),
                                                        1));
                            }),
                 {.grid = {n.blocks_q(), n.batch, n.heads},
                  .in = {rows, rows},
                  .out = {row_statistics},
                  .out_type = {n.statistics()},
                  .interpret = o.interpret});

    auto kernel = tw::kernel(
        "mha_backward", {"q", "k", "v", "segment_ids", "dout", "lse", "delta", "dq", "dk", "dv"},
        [=](tw::Ref q_ref, tw::Ref k_ref, tw::Ref v_ref, tw::Ref ids, tw::Ref dout_ref,
            tw::Ref lse_ref, tw::Ref delta_ref, tw::Ref dq_ref, tw::Ref dk_ref, tw::Ref dv_ref) {
            const tw::Tile start = tw::program_id(0);
            // P and dS of one pair of blocks; both scans need them.
            const auto pair = [&](tw::Tile first_q, tw::Tile first_k, tw::Tile queries,
                                  tw::Tile keys, tw::Tile values, tw::Tile d_out) {
                const tw::Slice block = tw::ds(first_q, n.block_q);
                const tw::Tile s = mha_scores(o, n.kv_length, queries, keys, first_q, first_k, ids);
                const tw::Tile lse_rows = lse_ref.at(block).load({.other = INFINITY});
                const tw::Tile p = tw::exp2(s - tw::expand_dims(lse_rows, 1));
                const tw::Tile dp = tw::dot(d_out, values, {.trans_b = true});
                const tw::Tile delta = delta_ref.at(block).load({.other = 0});
                const tw::Tile ds = p * (dp - tw::expand_dims(delta, 1)) * o.sm_scale;
                return std::pair(p.to(v_ref.dtype()), ds.to(q_ref.dtype()));
            };
            const auto load = [](const tw::Ref& ref, tw::Tile first, std::int64_t size) {
                return ref.at(tw::ds(first, size)).load({.other = 0});
            };

            // Scan 1: dK and dV of one block of keys over the blocks of queries that see it.
            tw::when(start < n.blocks_k(), [&] {
                const tw::Tile first_k = start * n.block_k;
                const tw::Tile keys = load(k_ref, first_k, n.block_k);
                const tw::Tile values = load(v_ref, first_k, n.block_k);
                const tw::Tile lower = o.causal ? first_k / n.block_q : tw::constant(0, tw::i64);
                const Gradients zero{tw::zeros({n.block_k, n.dim}, n.sums),
                                     tw::zeros({n.block_k, n.dim}, n.sums)};
                const Gradients g =
                    tw::for_loop(lower, n.blocks_q(), zero, [&](tw::Tile i, Gradients sum) {
                        const tw::Tile first_q = i * n.block_q;
                        const tw::Tile queries = load(q_ref, first_q, n.block_q);
                        const tw::Tile d_out = load(dout_ref, first_q, n.block_q);
                        const auto [p, ds] = pair(first_q, first_k, queries, keys, values, d_out);
                        return Gradients{tw::dot(ds, queries, {.trans_a = true, .acc = sum.key}),
                                         tw::dot(p, d_out, {.trans_a = true, .acc = sum.value})};
                    });
                dk_ref.at(tw::ds(first_k, n.block_k)).store(g.key.to(dk_ref.dtype()));
                dv_ref.at(tw::ds(first_k, n.block_k)).store(g.value.to(dv_ref.dtype()));
            });

            // Scan 2: dQ of one block of queries over the blocks of keys that it sees.
            tw::when(start < n.blocks_q(), [&] {
                const tw::Tile first_q = start * n.block_q;
                const tw::Tile queries = load(q_ref, first_q, n.block_q);
                const tw::Tile d_out = load(dout_ref, first_q, n.block_q);
                tw::Tile upper = tw::constant(n.blocks_k(), tw::i64);
                if (o.causal) upper = tw::minimum(upper, tw::cdiv(first_q + n.block_q, n.block_k));
                const tw::Tile zero = tw::zeros({n.block_q, n.dim}, n.sums);
                const tw::Tile dq = tw::for_loop(0, upper, zero, [&](tw::Tile i, tw::Tile sum) {
                    const tw::Tile block = i * n.block_k, k_block = load(k_ref, block, n.block_k);
                    const auto [p, ds] = pair(first_q, block, queries, k_block,
                                              load(v_ref, block, n.block_k), d_out);
                    return tw::dot(ds, k_block, {.acc = sum});
                });
                dq_ref.at(tw::ds(first_q, n.block_q)).store(dq.to(dq_ref.dtype()));
            });
        });
    const tw::BlockSpec whole({tw::squeezed, tw::all, tw::squeezed, tw::all},
                              [](auto, auto b, auto h) { return tw::block(b, 0, h, 0); });
    const tw::BlockSpec statistics({tw::squeezed, tw::squeezed, tw::all},
                                   [](auto, auto b, auto h) { return tw::block(b, h, 0); });
    const tw::BlockSpec ids({tw::squeezed, tw::all},
                            [](auto, auto b, auto) { return tw::block(b, 0); });
    const tw::TensorType queries{q.dtype(), q.shape()}, keys{k.dtype(), k.shape()};
    auto call = tw::call(
        kernel,
        {
            // A program handles one block of keys and one of queries, as far as there are any.
            .grid = {std::max(n.blocks_q(), n.blocks_k()), n.batch, n.heads},
            .in = {whole, whole, whole, segment_ids.defined() ? ids : tw::BlockSpec::absent(),
                   whole, statistics, statistics},
            .out = {whole, whole, whole},
            .out_type = {queries, keys, keys},
            .num_warps = o.num_warps,
            .num_stages = o.num_stages,
            .debug = o.debug,
            .interpret = o.interpret,
        });
    return call.outputs<3>(q, k, v, segment_ids, dout, lse, preprocess(out, dout));
}

/// The dense computation in f64, one query row at a time: rows of probabilities (batch, heads,
/// queries, keys) and the output.
struct DenseMha {
    std::vector<double> p, out;

    DenseMha(const tw::Tensor& q, const tw::Tensor& k, const tw::Tensor& v,
             const tw::Tensor& segment_ids, const MhaOptions& o) {
        const std::int64_t batch = q.dim(0), length = q.dim(1), heads = q.dim(2), dim = q.dim(3);
        out.resize(static_cast<std::size_t>(q.size()));
        for (std::int64_t b = 0; b < batch; ++b)
            for (std::int64_t h = 0; h < heads; ++h)
                for (std::int64_t i = 0; i < length; ++i) {
                    std::vector<double> row;
                    double max = -INFINITY, sum = 0;
                    for (std::int64_t j = 0; j < k.dim(1); ++j) {
                        double s = 0;
                        for (std::int64_t d = 0; d < dim; ++d)
                            s += q.get({b, i, h, d}) * k.get({b, j, h, d});
                        const bool masked = (o.causal && j > i) ||
                                            (segment_ids.defined() &&
                                             segment_ids.get({b, i}) != segment_ids.get({b, j}));
                        row.push_back(masked ? kMaskValue : s * o.sm_scale);
                        max = std::max(max, row.back());
                    }
                    for (double& x : row) sum += x = std::exp(x - max);
                    for (std::int64_t j = 0; j < k.dim(1); ++j) {
                        p.push_back(row[static_cast<std::size_t>(j)] / sum);
                        for (std::int64_t d = 0; d < dim; ++d)
                            out[static_cast<std::size_t>(((b * length + i) * heads + h) * dim +
                                                         d)] += p.back() * v.get({b, j, h, d});
                    }
                }
    }
};

/// Its gradients, by dV = P^T dO and dS = P (dO V^T - sum(dO O)).
struct DenseMhaGradients {
    std::vector<double> dq, dk, dv;

    DenseMhaGradients(const DenseMha& dense, const tw::Tensor& q, const tw::Tensor& k,
                      const tw::Tensor& v, const tw::Tensor& dout, const MhaOptions& o)
        : dq(static_cast<std::size_t>(q.size())), dk(static_cast<std::size_t>(k.size())), dv(dk) {
        const std::int64_t heads = q.dim(2), dim = q.dim(3);
        std::size_t index = 0;
        for (std::int64_t b = 0; b < q.dim(0); ++b)
            for (std::int64_t h = 0; h < heads; ++h)
                for (std::int64_t i = 0; i < q.dim(1); ++i)
                    for (std::int64_t j = 0; j < k.dim(1); ++j) {
                        const double p = dense.p[index++];
                        // The offsets of this query's and this key's rows.
                        const auto row = [&](std::int64_t length, std::int64_t position) {
                            return static_cast<std::size_t>(((b * length + position) * heads + h) *
                                                            dim);
                        };
                        const std::size_t q_row = row(q.dim(1), i), k_row = row(k.dim(1), j);
                        double dp = 0;
                        for (std::int64_t d = 0; d < dim; ++d) {
                            const auto c = static_cast<std::size_t>(d);
                            const double g = dout.get({b, i, h, d});
                            dp += g * (v.get({b, j, h, d}) - dense.out[q_row + c]);
                            dv[k_row + c] += p * g;
                        }
                        for (std::int64_t d = 0; d < dim; ++d) {
                            const auto c = static_cast<std::size_t>(d);
                            dq[q_row + c] += o.sm_scale * p * dp * k.get({b, j, h, d});
                            dk[k_row + c] += o.sm_scale * p * dp * q.get({b, i, h, d});
                        }
                    }
    }
};

/// Ids that change every 23 positions.
inline tw::Tensor mha_segments(std::int64_t batch, std::int64_t length) {
    const tw::Tensor ids = tw::Tensor::empty(tw::i32, {batch, length});
    for (std::int64_t b = 0; b < batch; ++b)
        for (std::int64_t i = 0; i < length; ++i) {
            const std::int64_t segment = i / 23;
            ids.set({b, i}, static_cast<double>(segment));
        }
    return ids;
}

}  // namespace examples
