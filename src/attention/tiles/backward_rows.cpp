// What comes before and after the backward's pairs of blocks: row statistics, gradients of sinks,
// sums of parts, copies without infinities.
#include <limits>

#include "attention/tiles/backward.h"
#include "attention/tiles/fragments.h"
#include "attention/tiles/pairs.h"
#include "support/integer.h"

namespace tilewright::attn::tiles {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void preprocess_program(bool looks, std::span<const Ref> refs) {
    const std::size_t output = looks ? 5 : 4;
    const Ref out = refs[0], dout = refs[1], lse = refs[2], dlse = refs[3], log2_sum = refs[output],
              delta = refs[output + 1];
    const Tile l = lse.load();
    const DType sums = lse.dtype();
    // Their probabilities become 0: rows without a key and, on GPUs, rows with large scores, whose
    // probabilities would be off by an arbitrary factor.
    const Tile none = abs(l) >= largest_lse(sums);
    log2_sum.store(where(none, kInfinity, l * kLog2E));
    if (!looks) {
        const Tile products = sum(out.load().to(sums) * dout.load().to(sums), 1);
        delta.store(dlse.present() ? products - dlse.load().to(sums) : products);
        return;
    }
    // Infinities and NaN in dout stay in the products' sum, whatever `out` holds.
    const LoadOptions rows{.other = 0};
    const Tile products = sum(out.load(rows).to(sums) * dout.load(rows).to(sums), 1);
    const Tile queries = zero_or_nan(refs[4].load(rows), sums);
    delta.store(dlse.present() ? products - dlse.load().to(sums) : products);
    refs[output + 2].store((sum(queries + products * 0.0) == 0) == constant(false, boolean));
}

void sinks_program(std::span<const Ref> refs) {
    const Ref sinks = refs[0], lse = refs[1], delta = refs[2], shift = refs[3], out = refs[4];
    constexpr std::int64_t kRows = 128;
    const DType sums = lse.dtype();
    const Tile sink = sinks.load().to(sums);
    // Past the end lse reads +inf, so that the sink's probability is 0.
    const Tile rows = for_loop(0, lse.extent(0), zeros({kRows}, sums), [&](Tile b, Tile outer) {
        return for_loop(0, cdiv(lse.extent(1), kRows), outer, [&](Tile i, Tile total) {
            const Slice block = ds(i * kRows, kRows);
            const Tile l = lse.at(b, block).load({.other = kInfinity});
            const Tile own = shift.present() ? sink - shift.at(b, block).load({.other = 0}) : sink;
            const Tile share = where(l == -kInfinity, 0.0, exp(own - l));
            return total - share * delta.at(b, block).load({.other = 0});
        });
    });
    out.store(sum(rows));
}

void sum_copies_program(std::span<const Ref> refs) {
    const Ref parts = refs[0], out = refs[1];
    const Tile sum = for_loop(1, parts.extent(0), parts.at(0).load(),
                              [&](Tile i, Tile s) { return s + parts.at(i).load(); });
    out.store(sum.to(out.dtype()));
}

void sum_parts_program(const Options& options, bool written, std::span<const Ref> refs) {
    const Ref parts = refs[0], dq = refs[1];
    Tile end = parts.extent(0);
    if (written && options.right() >= 0) {
        // The first keys of part s are those of block s. The diagonal leaves each row some part.
        const Tile next_row = (program_id(2) + 1) * options.block_q;
        end = minimum(end, cdiv(next_row + options.right(), options.block_k));
    }
    Tile sum = for_loop(1, end, parts.at(0).load(),
                        [&](Tile i, Tile s) { return s + parts.at(i).load(); });
    if (options.fragments) sum = from_fragments(sum, dq.shape()[1]);
    dq.store((sum * options.scale).to(dq.dtype()));
}

std::vector<std::int64_t> row_blocks(const Tensor& x, std::int64_t b, std::int64_t block_q) {
    const int first = static_cast<int>(b);
    return {x.dim(first), x.dim(first + 1), ceil_div(x.dim(first + 2), block_q)};
}

}  // namespace

Call backward_preprocess(const Options& options, bool dlse, bool looks) {
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
    std::vector<std::string> names{"out", "dout", "lse", "dlse", "log2_sum", "delta"};
    if (looks) {
        call_options.in.push_back(rows);
        names.insert(names.begin() + 4, "query");
        call_options.out.emplace_back(std::vector<BlockDim>{squeezed, squeezed, squeezed},
                                      [](auto b, auto h, auto i) { return block(b, h, i); });
        names.emplace_back("not_finite");
    }
    for (int array = 0; array < static_cast<int>(names.size()); ++array) {
        if (array != 3 || dlse) call_options.dynamic[array] = {0, 1, 2};
    }
    call_options.out_type = [looks, block_q = options.block_q](std::span<const Tensor> in) {
        std::vector<TensorType> types(2, {in[2].dtype(), in[2].shape()});
        if (looks) types.push_back({boolean, row_blocks(in[0], 0, block_q)});
        return types;
    };
    call_options.interpret = options.interpret;
    return call(kernel("attention_backward_preprocess", std::move(names),
                       [looks](std::span<const Ref> refs) { preprocess_program(looks, refs); }),
                call_options);
}

Call finite_copy(const Options& options, DType dtype) {
    constexpr std::int64_t kRows = 64;
    const BlockSpec rows({squeezed, squeezed, kRows, all},
                         [](auto b, auto h, auto i) { return block(b, h, i, 0); });
    CallOptions call_options;
    call_options.grid = [](std::span<const Tensor> in) { return row_blocks(in[0], 0, kRows); };
    call_options.in = call_options.out = {rows};
    call_options.out_type = [dtype](std::span<const Tensor> in) {
        return std::vector<TensorType>{{dtype, in[0].shape()}};
    };
    call_options.dynamic = {{0, {0, 1, 2}}, {1, {0, 1, 2}}};
    call_options.interpret = options.interpret;
    return call(kernel("attention_finite_copy", {"rows", "copy"},
                       [](Ref x, Ref copy) { copy.store(finite(x.load({.other = 0}))); }),
                call_options);
}

Call sinks_backward(const Options& options, bool shifted) {
    const BlockSpec rows({all, squeezed, all}, [](auto h) { return block(0, h, 0); });
    const BlockSpec head({squeezed}, [](auto h) { return block(h); });
    CallOptions call_options;
    call_options.grid = [](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{in[0].dim(0)};
    };
    call_options.in = {head, rows, rows, shifted ? rows : BlockSpec::absent()};
    call_options.out = {head};
    call_options.out_type = [](std::span<const Tensor> in) {
        return std::vector<TensorType>{{in[1].dtype(), in[0].shape()}};
    };
    call_options.interpret = options.interpret;
    return call(kernel("attention_sinks_backward", {"sinks", "lse", "delta", "shift", "dsinks"},
                       sinks_program),
                call_options);
}

Call sum_copies(const Options& options, DType dtype) {
    constexpr std::int64_t kBlock = 1024;
    CallOptions call_options;
    call_options.grid = [](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{ceil_div(in[0].dim(1), kBlock)};
    };
    call_options.in = {BlockSpec({all, kBlock}, [](auto i) { return block(0, i); })};
    call_options.out = {BlockSpec({kBlock}, [](auto i) { return block(i); })};
    call_options.out_type = [dtype](std::span<const Tensor> in) {
        return std::vector<TensorType>{{dtype, {in[0].dim(1)}}};
    };
    call_options.dynamic = {{0, {0, 1}}, {1, {0}}};
    call_options.interpret = options.interpret;
    return call(kernel("attention_sum_copies", {"parts", "sum"}, sum_copies_program), call_options);
}

Call sum_parts(const Options& options, DType dtype, bool written, std::int64_t queries) {
    const std::int64_t block_q = options.block_q;
    CallOptions call_options;
    call_options.out = {BlockSpec({squeezed, squeezed, block_q, all},
                                  [](auto b, auto h, auto i) { return block(b, h, i, 0); })};
    call_options.interpret = options.interpret;
    if (options.fragments) {
        call_options.grid = [](std::span<const Tensor> in) {
            return std::vector<std::int64_t>{in[0].dim(1), in[0].dim(2), in[0].dim(3)};
        };
        call_options.in = {BlockSpec({all, squeezed, squeezed, squeezed, all},
                                     [](auto b, auto h, auto i) { return block(0, b, h, i, 0); })};
        call_options.out_type = [dtype, block_q, queries](std::span<const Tensor> in) {
            const auto& shape = in[0].shape();
            return std::vector<TensorType>{
                {dtype, {shape[1], shape[2], queries, shape[4] / block_q}}};
        };
        call_options.dynamic = {{0, {0, 1, 2, 3}}, {1, {0, 1}}};
    } else {
        call_options.grid = [block_q](std::span<const Tensor> in) {
            return row_blocks(in[0], 1, block_q);
        };
        call_options.in = {BlockSpec({all, squeezed, squeezed, block_q, all},
                                     [](auto b, auto h, auto i) { return block(0, b, h, i, 0); })};
        call_options.out_type = [dtype](std::span<const Tensor> in) {
            const auto& shape = in[0].shape();
            return std::vector<TensorType>{{dtype, {shape.begin() + 1, shape.end()}}};
        };
        call_options.dynamic = {{0, {0, 1, 2, 3}}, {1, {0, 1, 2}}};
    }
    return call(kernel("attention_backward_sum", {"dq_parts", "dq"},
                       [options, written](std::span<const Ref> refs) {
                           sum_parts_program(options, written, refs);
                       }),
                call_options);
}

}  // namespace tilewright::attn::tiles
